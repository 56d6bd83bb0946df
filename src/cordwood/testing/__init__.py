"""For tests of Cordwood and of programs that use it: slow twins of fast code, and Hypothesis strategies for logs."""
