"""Why a partition is as large as it is, and what happens to a record next: facts, causes, sentences."""
