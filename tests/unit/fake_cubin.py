"""Machine code as the driver loads it, as far as it tells which kernels are in it."""

import struct

_HEADER = struct.Struct("<4sBBBBB7xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
GLOBAL_FUNCTION, LOCAL_OBJECT = 0x12, 0x01
KERNEL, DEVICE_FUNCTION = 0x10, 0x00


def fake_cubin(*kernels, functions=(), salt="", os_abi=(0x41, 8), machine=190):
    """An ELF file with these kernels, and functions that are none; with another salt it has another hash."""
    symbols, texts = [_SYMBOL.pack(0, 0, 0, 0, 0, 0)], b"\0"
    for name, kind in [
        *((name, KERNEL) for name in kernels),
        *((name, DEVICE_FUNCTION) for name in functions),
    ]:
        symbols.append(_SYMBOL.pack(len(texts), GLOBAL_FUNCTION, kind, 1, 0, 16))
        texts += name.encode() + b"\0"
    symbols.append(_SYMBOL.pack(len(texts), LOCAL_OBJECT, KERNEL, 1, 0, 16))
    texts += b"no function\0"
    names = b"\0.text\0.symtab\0.strtab\0.comment\0"
    contents = [b"", b"\0" * 16, b"".join(symbols), texts + names, salt.encode()]
    titles = ["", ".text", ".symtab", ".strtab", ".comment"]
    table, at = [], _HEADER.size
    for title, content in zip(titles, contents, strict=True):
        title_at = len(texts) + names.index(title.encode() + b"\0") if title else 0
        table.append(
            _SECTION.pack(title_at, 1, 0, 0, at, len(content), 3 if title == ".symtab" else 0, 0, 1, 0)
        )
        at += len(content)
    flags = 90 << (8 if os_abi == (0x41, 8) else 0)
    header = _HEADER.pack(
        *(b"\x7fELF", 2, 1, 1, *os_abi, 2, machine, 1, 0, 0, at, flags, _HEADER.size, 0, 0, _SECTION.size),
        *(len(table), 3),
    )
    return header + b"".join(contents) + b"".join(table)
