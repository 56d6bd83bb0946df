"""Answers over HTTP: the server, and the pages of `view`."""
