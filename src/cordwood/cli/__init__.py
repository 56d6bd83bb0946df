import os

# numpy's library of linear algebra, which no command uses, starts threads when numpy is imported. A process with one
# thread can fork.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
