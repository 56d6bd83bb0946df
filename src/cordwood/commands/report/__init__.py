"""Formats all output: plans, results, listings and findings as text, JSON and HTML.

Each module turns the values of one command into `lines` and a `document`. Importing a module registers its results,
which can then display themselves; see `presentable`.
"""
