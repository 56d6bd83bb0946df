"""The library behind gzip, while threads find it for the first time."""

from __future__ import annotations

import subprocess
import sys

#: The extension loads slowly. Until it is loaded, it has no specification, like every extension.
TWO_THREADS = """
import sys, threading, time, types
from importlib.machinery import ExtensionFileLoader, PathFinder

begun = threading.Event()

class Slow(ExtensionFileLoader):
    def create_module(self, spec):
        sys.modules[spec.name] = types.ModuleType(spec.name)
        begun.set()
        time.sleep(0.5)
        del sys.modules[spec.name]
        return super().create_module(spec)

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        spec = PathFinder.find_spec(name, path) if name == "deflate._deflate" else None
        if spec is not None:
            spec.loader = Slow(name, spec.origin)
        return spec

sys.meta_path.insert(0, Finder)
from cordwood.record.libraries import libdeflate

found = []
other = threading.Thread(target=lambda: found.append(libdeflate()))
other.start()
begun.wait()
found.append(libdeflate())
other.join()
print([one is not None for one in found])
"""


def test_a_thread_waits_for_the_library_that_another_one_loads() -> None:
    done = subprocess.run([sys.executable, "-c", TWO_THREADS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[True, True]\n"), done.stderr
