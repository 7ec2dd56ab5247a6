"""An array that tells where it lies by DLPack alone, with whatever dtype and device a test wants."""

import ctypes

CUDA, ROCM = (2, 0), (10, 0)
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes, _pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p


class Exporter:
    """Exports a NumPy array; in the capsule, `form` is its dtype: code, bits, lanes in 2 bytes."""

    def __init__(self, array, *, device=(1, 0), form=None, dtype=None):
        self.array, self.device, self.form, self.dtype, self.exports = array, device, form, dtype, 0

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, max_version=None):
        assert stream is None  # JAX hands -1 to the driver as if it were a stream
        self.exports += 1
        capsule = self.array.__dlpack__(max_version=(1, 0))
        dtype = _pointer(capsule, b"dltensor_versioned") + 52  # DLManagedTensorVersioned.dl_tensor.dtype
        if self.form is not None:
            (ctypes.c_uint8 * 4).from_address(dtype)[:] = self.form
        return capsule
