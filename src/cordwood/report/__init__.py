"""All that is printed: plans, results, listings and findings as text, JSON and HTML.

Each module turns the values of one command into `lines` and a `document`. Importing a module registers those of its
results, which show themselves; see `presentable`.
"""
