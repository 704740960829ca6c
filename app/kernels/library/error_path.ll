; The error path of numba's wrappers, where there is no Python: a kernel that raised is remembered.
; One text for all architectures: triple and data layout are given where it is compiled.

@stowplan_raised = hidden global i32 0
@PyExc_StopIteration = hidden global ptr null
@PyExc_SystemError = hidden global ptr null
@PyExc_RuntimeError = hidden global ptr null

define hidden i32 @numba_gil_ensure() { ret i32 0 }
define hidden void @numba_gil_release(i32 %state) { ret void }
define hidden void @numba_unpickle() { ret void }
define hidden ptr @numba_runtime_build_excinfo_struct(ptr %kind, ptr %arguments) { ret ptr null }
define hidden void @numba_do_raise(ptr %info) { ret void }
define hidden void @NRT_Free(ptr %memory) { ret void }
define hidden void @PyErr_SetNone(ptr %kind) { ret void }
define hidden void @PyErr_SetString(ptr %kind, ptr %text) { ret void }
define hidden void @PyErr_Clear() { ret void }
define hidden ptr @PyUnicode_FromString(ptr %text) { ret ptr null }
define hidden ptr @PyBytes_FromStringAndSize(ptr %text, i64 %size) { ret ptr null }
define hidden void @Py_DecRef(ptr %object) { ret void }

define hidden void @PyErr_WriteUnraisable(ptr %object) {
  store atomic i32 1, ptr @stowplan_raised monotonic, align 4
  ret void
}
