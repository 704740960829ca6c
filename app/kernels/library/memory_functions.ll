; memset, memmove and memcmp for programs without a C library: what LLVM makes calls of beside memcpy.
; One text for all architectures: triple and data layout are given where it is compiled.

define hidden ptr @memset(ptr %to, i32 %value, i64 %bytes) "no-builtins" {
start:
  %byte = trunc i32 %value to i8
  %one = insertelement <16 x i8> poison, i8 %byte, i64 0
  %all = shufflevector <16 x i8> %one, <16 x i8> poison, <16 x i32> zeroinitializer
  %vectors = and i64 %bytes, -16
  br label %vector_head
vector_head:
  %v = phi i64 [ 0, %start ], [ %v_next, %vector ]
  %more = icmp ult i64 %v, %vectors
  br i1 %more, label %vector, label %byte_head
vector:
  %v_at = getelementptr i8, ptr %to, i64 %v
  store <16 x i8> %all, ptr %v_at, align 1
  %v_next = add i64 %v, 16
  br label %vector_head
byte_head:
  %i = phi i64 [ %v, %vector_head ], [ %i_next, %single ]
  %left = icmp ult i64 %i, %bytes
  br i1 %left, label %single, label %end
single:
  %at = getelementptr i8, ptr %to, i64 %i
  store i8 %byte, ptr %at, align 1
  %i_next = add i64 %i, 1
  br label %byte_head
end:
  ret ptr %to
}

define hidden ptr @memmove(ptr %to, ptr %from, i64 %bytes) "no-builtins" {
start:
  %t = ptrtoint ptr %to to i64
  %f = ptrtoint ptr %from to i64
  %distance = sub i64 %t, %f
  %overlaps = icmp ult i64 %distance, %bytes ; writes at the front would change what is read later
  br i1 %overlaps, label %back_head, label %front_head
front_head:
  %i = phi i64 [ 0, %start ], [ %i_next, %front ]
  %more = icmp ult i64 %i, %bytes
  br i1 %more, label %front, label %end
front:
  %i_from = getelementptr i8, ptr %from, i64 %i
  %i_to = getelementptr i8, ptr %to, i64 %i
  %i_byte = load i8, ptr %i_from, align 1
  store i8 %i_byte, ptr %i_to, align 1
  %i_next = add i64 %i, 1
  br label %front_head
back_head:
  %j = phi i64 [ %bytes, %start ], [ %j_next, %back ]
  %left = icmp ugt i64 %j, 0
  br i1 %left, label %back, label %end
back:
  %j_next = sub i64 %j, 1
  %j_from = getelementptr i8, ptr %from, i64 %j_next
  %j_to = getelementptr i8, ptr %to, i64 %j_next
  %j_byte = load i8, ptr %j_from, align 1
  store i8 %j_byte, ptr %j_to, align 1
  br label %back_head
end:
  ret ptr %to
}

define hidden i32 @memcmp(ptr %a, ptr %b, i64 %bytes) "no-builtins" {
start:
  br label %head
head:
  %i = phi i64 [ 0, %start ], [ %next, %same ]
  %more = icmp ult i64 %i, %bytes
  br i1 %more, label %compare, label %equal
compare:
  %a_at = getelementptr i8, ptr %a, i64 %i
  %b_at = getelementptr i8, ptr %b, i64 %i
  %a_byte = load i8, ptr %a_at, align 1
  %b_byte = load i8, ptr %b_at, align 1
  %next = add i64 %i, 1
  %differs = icmp ne i8 %a_byte, %b_byte
  br i1 %differs, label %different, label %same
same:
  br label %head
different:
  %a_wide = zext i8 %a_byte to i32
  %b_wide = zext i8 %b_byte to i32
  %order = sub i32 %a_wide, %b_wide
  ret i32 %order
equal:
  ret i32 0
}

define hidden i32 @bcmp(ptr %a, ptr %b, i64 %bytes) "no-builtins" {
  %order = call i32 @memcmp(ptr %a, ptr %b, i64 %bytes)
  ret i32 %order
}
