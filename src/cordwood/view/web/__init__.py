"""HTTP: the server, and the routes of `view`."""
