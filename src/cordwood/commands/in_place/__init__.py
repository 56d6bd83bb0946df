"""The steps of a clean in place; `commands.clean_in_place` calls them in their order."""
