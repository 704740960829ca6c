"""Write the operators of MXNet 1.9.1 with their other names: python registry.py FILE. Runs in its environment."""

import ctypes
import json
import sys
from pathlib import Path

import mxnet as mx

LIBRARY = ctypes.CDLL(mx.libinfo.find_lib_path()[0])


def names():
    """Every name of an operator."""
    count, found = ctypes.c_uint(), ctypes.POINTER(ctypes.c_char_p)()
    LIBRARY.MXListAllOpNames(ctypes.byref(count), ctypes.byref(found))
    return sorted(found[i].decode() for i in range(count.value))


def own_name(name):
    """The name that a file of a symbol has for an operator."""
    handle, own, text = ctypes.c_void_p(), ctypes.c_char_p(), ctypes.c_char_p()
    LIBRARY.NNGetOpHandle(name.encode(), ctypes.byref(handle))
    lists = [ctypes.POINTER(ctypes.c_char_p)() for _ in range(3)]
    refs = [ctypes.byref(p) for p in lists]
    count, kind = ctypes.c_uint(), ctypes.c_char_p()
    LIBRARY.NNGetOpInfo(
        handle, ctypes.byref(own), ctypes.byref(text), ctypes.byref(count), *refs, ctypes.byref(kind)
    )
    return own.value.decode()


def main(file):
    found = {}
    for name in names():
        others = found.setdefault(own_name(name), [])
        others += [name] if name != own_name(name) else []
    Path(file).write_text(json.dumps(found, indent=0, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
