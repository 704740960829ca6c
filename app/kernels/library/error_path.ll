; The error path of kernels: one that raised is remembered.
; One text for all architectures: triple and data layout are given where it is compiled.

@stowplan_raised = hidden global i32 0

define hidden void @stowplan_raise() {
  store atomic i32 1, ptr @stowplan_raised monotonic, align 4
  ret void
}
