"""The key indexes beside a log: built from segments, written, checked, and searched for keys."""
