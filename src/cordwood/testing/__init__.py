"""For testing Cordwood and what is built on it: slow twins of the fast parts, and Hypothesis strategies for logs."""
