"""Months of live logs in seconds: the engine of `service`, in memory, on a clock that is moved by hand."""
