"""Pages in a browser: of logs on disk (`view`) and of live logs (`run --view`), with the server that answers."""
