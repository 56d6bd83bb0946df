"""What a user asks for, a module per command, each told from top to bottom."""
