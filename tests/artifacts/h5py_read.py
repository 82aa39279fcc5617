"""Prints what h5py sees in a file, one line per attribute and dataset: an opinion on our files that is not ours."""
import hashlib
import sys

import h5py
import numpy


def show(path, item):
    for name in sorted(item.attrs):
        value = item.attrs[name]  # strings of fixed length come as bytes
        text = value.decode() if isinstance(value, bytes) else repr(value.item())
        print(f"{path}@{name} {text}".replace("\n", "\\n"))
    if isinstance(item, h5py.Dataset):
        data = item[()]
        if data.dtype.kind in "SO":
            texts = [text.decode() if isinstance(text, bytes) else text for text in data]
            print(f"{path} strings {list(item.shape)} {'|'.join(texts)}")
            return
        digest = hashlib.sha256(numpy.ascontiguousarray(data).tobytes()).hexdigest()
        filters = "+".join(name for name, on in (("shuffle", item.shuffle), (item.compression, item.compression)) if on)
        print(f"{path} {data.dtype.str} {list(item.shape)} {digest} {filters}".rstrip())


with h5py.File(sys.argv[1], "r") as file:
    show("/", file)
    file.visititems(lambda name, item: show("/" + name, item))
