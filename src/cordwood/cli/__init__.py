import os

# numpy's linear algebra library (no command uses it) starts threads when numpy is imported. Keep the process at one
# thread, so that it can fork.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
