import gc
import os

# numpy's linear algebra library (no command uses it) starts threads when numpy is imported. Keep the process at one
# thread, so that it can fork.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# A command makes many objects that stay (modules, the files of a directory) and few reference cycles. Searching for
# cycles after every 700 new objects, as Python does, takes a fifth of the time of a start, and of a plan. Commands that
# run until they are stopped set Python's threshold again.
PYTHON_GC_THRESHOLD = gc.get_threshold()[0]
gc.set_threshold(500_000)
