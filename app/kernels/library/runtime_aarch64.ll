; ModuleID = 'app/kernels/library/runtime.c'
source_filename = "app/kernels/library/runtime.c"
target datalayout = "e-m:e-i8:8:32-i16:16:32-i64:64-i128:128-n32:64-S128"
target triple = "aarch64-unknown-linux-gnu"

%struct.program = type { i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr }
%union.pthread_mutex_t = type { %struct.__pthread_mutex_s, [8 x i8] }
%struct.__pthread_mutex_s = type { i32, i32, i32, i32, i32, i32, %struct.__pthread_internal_list }
%struct.__pthread_internal_list = type { ptr, ptr }
%struct.stowplan = type { i32, i32, i32, i32, i32, i32, i32, ptr, ptr, ptr, ptr, [7 x i64], [4 x ptr], ptr, i64, %struct.cpu_set_t, [256 x i64] }
%struct.cpu_set_t = type { [16 x i64] }
%struct.place = type { i64, i64 }
%struct.start = type { ptr, i32 }
%struct.stowplan_tensor = type { ptr, ptr, i32, i32, i64 }
%struct.ort_api_base = type { ptr, ptr }
%struct.operator = type { %struct.ort_operator, ptr, i32, i32, ptr, ptr }
%struct.ort_operator = type { i32, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, [4 x ptr], ptr, ptr }
%struct.ort_api = type { ptr, [25 x ptr], ptr, ptr, ptr, [22 x ptr], ptr, [8 x ptr], ptr, ptr, ptr, [2 x ptr], ptr, [24 x ptr], ptr, ptr, [7 x ptr], ptr, [137 x ptr], ptr, ptr }
%struct.kernel = type { ptr, ptr, %union.pthread_mutex_t }

@stowplan_program = external local_unnamed_addr constant %struct.program, align 8
@.str = private unnamed_addr constant [9 x i8] c"no error\00", align 1
@.str.1 = private unnamed_addr constant [43 x i8] c"the system gave no memory for the instance\00", align 1
@.str.2 = private unnamed_addr constant [35 x i8] c"the system started no more threads\00", align 1
@.str.3 = private unnamed_addr constant [99 x i8] c"this processor lacks instructions that the model was compiled for; see \22processor\22 in the metadata\00", align 1
@.str.4 = private unnamed_addr constant [76 x i8] c"another thread is running this instance; create an instance for each thread\00", align 1
@.str.5 = private unnamed_addr constant [64 x i8] c"the instance was created before fork(); create one in the child\00", align 1
@.str.6 = private unnamed_addr constant [50 x i8] c"an argument is NULL, negative, or an unknown flag\00", align 1
@.str.7 = private unnamed_addr constant [16 x i8] c"a kernel failed\00", align 1
@.str.8 = private unnamed_addr constant [15 x i8] c"unknown status\00", align 1
@.str.9 = private unnamed_addr constant [55 x i8] c"the model needs onnxruntime 1.%d or newer, found %.32s\00", align 1
@.str.10 = private unnamed_addr constant [17 x i8] c"stowplan.threads\00", align 1
@.str.11 = private unnamed_addr constant [22 x i8] c"stowplan.copy_weights\00", align 1
@.str.12 = private unnamed_addr constant [18 x i8] c"stowplan.affinity\00", align 1
@operators_lock = internal global %union.pthread_mutex_t { %struct.__pthread_mutex_s zeroinitializer, [8 x i8] undef }, align 8
@operators = internal unnamed_addr global ptr null, align 8
@weights_lock = internal global %union.pthread_mutex_t { %struct.__pthread_mutex_s zeroinitializer, [8 x i8] undef }, align 8
@weights_users = internal unnamed_addr global i32 0, align 4
@weights_mapped = internal global ptr null, align 8
@weights_bytes_mapped = internal global i64 0, align 8
@weights_copy = internal unnamed_addr global ptr null, align 8
@stowplan_raised = external hidden local_unnamed_addr global i32, align 4
@.str.13 = private unnamed_addr constant [62 x i8] c"session option %s: expected a number from 0 to %d, found '%s'\00", align 1
@.str.14 = private unnamed_addr constant [14 x i8] c"CompiledModel\00", align 1
@.str.15 = private unnamed_addr constant [33 x i8] c"an input of the model is missing\00", align 1
@.str.16 = private unnamed_addr constant [116 x i8] c"input '%.128s': expected element type %d and shape [%s], found %d and [%s]; the model was compiled for fixed shapes\00", align 1
@.str.17 = private unnamed_addr constant [6 x i8] c",%lld\00", align 1
@.str.18 = private unnamed_addr constant [5 x i8] c"%lld\00", align 1
@reltable.stowplan_message = private unnamed_addr constant [8 x i32] [i32 trunc (i64 sub (i64 ptrtoint (ptr @.str to i64), i64 ptrtoint (ptr @reltable.stowplan_message to i64)) to i32), i32 trunc (i64 sub (i64 ptrtoint (ptr @.str.1 to i64), i64 ptrtoint (ptr @reltable.stowplan_message to i64)) to i32), i32 trunc (i64 sub (i64 ptrtoint (ptr @.str.2 to i64), i64 ptrtoint (ptr @reltable.stowplan_message to i64)) to i32), i32 trunc (i64 sub (i64 ptrtoint (ptr @.str.3 to i64), i64 ptrtoint (ptr @reltable.stowplan_message to i64)) to i32), i32 trunc (i64 sub (i64 ptrtoint (ptr @.str.4 to i64), i64 ptrtoint (ptr @reltable.stowplan_message to i64)) to i32), i32 trunc (i64 sub (i64 ptrtoint (ptr @.str.5 to i64), i64 ptrtoint (ptr @reltable.stowplan_message to i64)) to i32), i32 trunc (i64 sub (i64 ptrtoint (ptr @.str.6 to i64), i64 ptrtoint (ptr @reltable.stowplan_message to i64)) to i32), i32 trunc (i64 sub (i64 ptrtoint (ptr @.str.7 to i64), i64 ptrtoint (ptr @reltable.stowplan_message to i64)) to i32)], align 4

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(none) uwtable
define i32 @stowplan_check() local_unnamed_addr #0 {
  ret i32 0
}

; Function Attrs: minsize nounwind optsize uwtable
define void @stowplan_destroy(ptr noundef %0) local_unnamed_addr #1 {
  %2 = icmp eq ptr %0, null
  br i1 %2, label %62, label %3

3:                                                ; preds = %1
  %4 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 7
  %5 = load ptr, ptr %4, align 8, !tbaa !4
  %6 = icmp eq ptr %5, null
  br i1 %6, label %33, label %7

7:                                                ; preds = %3
  %8 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 6
  %9 = load i32, ptr %8, align 8, !tbaa !12
  %10 = tail call i32 @getpid() #15
  %11 = icmp eq i32 %9, %10
  br i1 %11, label %12, label %33

12:                                               ; preds = %7
  %13 = load ptr, ptr %4, align 8, !tbaa !4
  %14 = getelementptr inbounds i64, ptr %13, i64 33
  store atomic i64 1, ptr %14 seq_cst, align 8
  %15 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 5
  %16 = load i32, ptr %15, align 4, !tbaa !13
  %17 = icmp eq i32 %16, 0
  br i1 %17, label %22, label %18

18:                                               ; preds = %12
  %19 = load ptr, ptr %4, align 8, !tbaa !4
  %20 = add nsw i32 %16, 1
  %21 = sext i32 %20 to i64
  tail call void @stowplan_wake(ptr noundef %19, i64 noundef %21) #15
  br label %22

22:                                               ; preds = %18, %12
  br label %23

23:                                               ; preds = %22, %28
  %24 = phi i64 [ %32, %28 ], [ 1, %22 ]
  %25 = load i32, ptr %15, align 4, !tbaa !13
  %26 = sext i32 %25 to i64
  %27 = icmp sgt i64 %24, %26
  br i1 %27, label %33, label %28

28:                                               ; preds = %23
  %29 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 16, i64 %24
  %30 = load i64, ptr %29, align 8, !tbaa !14
  %31 = tail call i32 @pthread_join(i64 noundef %30, ptr noundef null) #15
  %32 = add nuw nsw i64 %24, 1
  br label %23, !llvm.loop !15

33:                                               ; preds = %23, %7, %3
  %34 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 12, i64 2
  %35 = load ptr, ptr %34, align 8, !tbaa !17
  %36 = icmp eq ptr %35, null
  br i1 %36, label %53, label %37

37:                                               ; preds = %33
  %38 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 1
  %39 = load i32, ptr %38, align 4, !tbaa !18
  %40 = and i32 %39, 1
  %41 = icmp eq i32 %40, 0
  br i1 %41, label %53, label %42

42:                                               ; preds = %37
  %43 = tail call i32 @pthread_mutex_lock(ptr noundef nonnull @weights_lock) #15
  %44 = load i32, ptr @weights_users, align 4, !tbaa !19
  %45 = add nsw i32 %44, -1
  store i32 %45, ptr @weights_users, align 4, !tbaa !19
  %46 = icmp eq i32 %45, 0
  br i1 %46, label %47, label %51

47:                                               ; preds = %42
  %48 = load ptr, ptr @weights_mapped, align 8, !tbaa !17
  %49 = load i64, ptr @weights_bytes_mapped, align 8, !tbaa !14
  %50 = tail call i32 @munmap(ptr noundef %48, i64 noundef %49) #15
  store ptr null, ptr @weights_copy, align 8, !tbaa !17
  br label %51

51:                                               ; preds = %42, %47
  %52 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull @weights_lock) #15
  br label %53

53:                                               ; preds = %51, %37, %33
  %54 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 13
  %55 = load ptr, ptr %54, align 8, !tbaa !20
  %56 = icmp eq ptr %55, null
  br i1 %56, label %61, label %57

57:                                               ; preds = %53
  %58 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 14
  %59 = load i64, ptr %58, align 8, !tbaa !21
  %60 = tail call i32 @munmap(ptr noundef nonnull %55, i64 noundef %59) #15
  br label %61

61:                                               ; preds = %57, %53
  tail call void @free(ptr noundef nonnull %0) #15
  br label %62

62:                                               ; preds = %1, %61
  ret void
}

; Function Attrs: minsize nounwind optsize
declare i32 @getpid() local_unnamed_addr #2

; Function Attrs: minsize optsize
declare void @stowplan_wake(ptr noundef, i64 noundef) local_unnamed_addr #3

; Function Attrs: mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite)
declare void @llvm.lifetime.start.p0(i64 immarg, ptr nocapture) #4

; Function Attrs: minsize optsize
declare i32 @pthread_join(i64 noundef, ptr noundef) local_unnamed_addr #3

; Function Attrs: mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite)
declare void @llvm.lifetime.end.p0(i64 immarg, ptr nocapture) #4

; Function Attrs: minsize nounwind optsize
declare i32 @munmap(ptr noundef, i64 noundef) local_unnamed_addr #2

; Function Attrs: minsize mustprogress nounwind optsize willreturn allockind("free") memory(argmem: readwrite, inaccessiblemem: readwrite)
declare void @free(ptr allocptr nocapture noundef) local_unnamed_addr #5

; Function Attrs: minsize nounwind optsize uwtable
define i32 @stowplan_create(ptr noundef writeonly %0, i32 noundef %1, i32 noundef %2) local_unnamed_addr #1 {
  %4 = icmp eq ptr %0, null
  br i1 %4, label %243, label %5

5:                                                ; preds = %3
  store ptr null, ptr %0, align 8, !tbaa !17
  %6 = icmp ugt i32 %2, 3
  %7 = icmp slt i32 %1, 0
  %8 = or i1 %7, %6
  br i1 %8, label %243, label %9

9:                                                ; preds = %5
  %10 = tail call noalias dereferenceable_or_null(2344) ptr @calloc(i64 noundef 1, i64 noundef 2344) #16
  %11 = icmp eq ptr %10, null
  br i1 %11, label %243, label %12

12:                                               ; preds = %9
  %13 = icmp ne i32 %1, 0
  %14 = zext i32 %1 to i64
  %15 = load i64, ptr @stowplan_program, align 8
  %16 = icmp sgt i64 %15, %14
  %17 = select i1 %13, i1 %16, i1 false
  %18 = trunc i64 %15 to i32
  %19 = select i1 %17, i32 %1, i32 %18
  store i32 %19, ptr %10, align 8, !tbaa !22
  %20 = getelementptr inbounds %struct.stowplan, ptr %10, i64 0, i32 1
  store i32 %2, ptr %20, align 4, !tbaa !18
  %21 = getelementptr inbounds %struct.stowplan, ptr %10, i64 0, i32 3
  store i32 -1, ptr %21, align 4, !tbaa !23
  %22 = tail call i32 @getpid() #15
  %23 = getelementptr inbounds %struct.stowplan, ptr %10, i64 0, i32 6
  store i32 %22, ptr %23, align 8, !tbaa !12
  %24 = sext i32 %19 to i64
  %25 = mul nsw i64 %24, 384
  %26 = add nsw i64 %25, 384
  %27 = load i64, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 4), align 8, !tbaa !24
  %28 = mul i64 %27, 40
  %29 = add i64 %28, 63
  %30 = and i64 %29, -64
  %31 = load i64, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 5), align 8, !tbaa !26
  %32 = shl i64 %31, 3
  %33 = add i64 %32, 71
  %34 = and i64 %33, -64
  %35 = shl i64 %27, 3
  %36 = add i64 %35, 71
  %37 = and i64 %36, -64
  %38 = load <2 x i64>, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 1), align 8, !tbaa !14
  %39 = add <2 x i64> %38, <i64 63, i64 63>
  %40 = and <2 x i64> %39, <i64 -64, i64 -64>
  %41 = add <2 x i64> %40, <i64 4096, i64 4096>
  %42 = add i64 %30, %26
  %43 = add i64 %42, %37
  %44 = add i64 %43, %34
  %45 = extractelement <2 x i64> %41, i64 0
  %46 = add i64 %44, %45
  %47 = extractelement <2 x i64> %41, i64 1
  %48 = add i64 %46, %47
  %49 = getelementptr inbounds %struct.stowplan, ptr %10, i64 0, i32 13
  %50 = getelementptr inbounds %struct.stowplan, ptr %10, i64 0, i32 14
  %51 = tail call fastcc ptr @map_pages(i64 noundef %48, ptr noundef nonnull %49, ptr noundef nonnull %50) #17
  %52 = icmp eq ptr %51, null
  br i1 %52, label %53, label %55

53:                                               ; preds = %12
  %54 = getelementptr inbounds %struct.stowplan, ptr %10, i64 0, i32 12, i64 2
  store ptr null, ptr %54, align 8, !tbaa !17
  br label %86

55:                                               ; preds = %12
  %56 = and i32 %2, 1
  %57 = icmp eq i32 %56, 0
  br i1 %57, label %58, label %60

58:                                               ; preds = %55
  %59 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 18), align 8, !tbaa !27
  br label %82

60:                                               ; preds = %55
  %61 = tail call i32 @pthread_mutex_lock(ptr noundef nonnull @weights_lock) #15
  %62 = load i32, ptr @weights_users, align 4, !tbaa !19
  %63 = icmp eq i32 %62, 0
  br i1 %63, label %64, label %73

64:                                               ; preds = %60
  %65 = load i64, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 3), align 8, !tbaa !28
  %66 = tail call fastcc ptr @map_pages(i64 noundef %65, ptr noundef nonnull @weights_mapped, ptr noundef nonnull @weights_bytes_mapped) #17
  store ptr %66, ptr @weights_copy, align 8, !tbaa !17
  %67 = icmp eq ptr %66, null
  br i1 %67, label %79, label %68

68:                                               ; preds = %64
  %69 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 18), align 8, !tbaa !27
  tail call void @llvm.memcpy.p0.p0.i64(ptr nonnull align 1 %66, ptr align 1 %69, i64 %65, i1 false)
  %70 = load ptr, ptr @weights_mapped, align 8, !tbaa !17
  %71 = load i64, ptr @weights_bytes_mapped, align 8, !tbaa !14
  %72 = tail call i32 @mprotect(ptr noundef %70, i64 noundef %71, i32 noundef 1) #15
  br label %73

73:                                               ; preds = %68, %60
  %74 = load ptr, ptr @weights_copy, align 8, !tbaa !17
  %75 = icmp eq ptr %74, null
  br i1 %75, label %79, label %76

76:                                               ; preds = %73
  %77 = load i32, ptr @weights_users, align 4, !tbaa !19
  %78 = add nsw i32 %77, 1
  store i32 %78, ptr @weights_users, align 4, !tbaa !19
  br label %79

79:                                               ; preds = %76, %73, %64
  %80 = phi ptr [ %74, %76 ], [ null, %73 ], [ null, %64 ]
  %81 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull @weights_lock) #15
  br label %82

82:                                               ; preds = %79, %58
  %83 = phi ptr [ %80, %79 ], [ %59, %58 ]
  %84 = getelementptr inbounds %struct.stowplan, ptr %10, i64 0, i32 12, i64 2
  store ptr %83, ptr %84, align 8, !tbaa !17
  %85 = icmp eq ptr %83, null
  br i1 %85, label %86, label %87

86:                                               ; preds = %53, %82
  tail call void @stowplan_destroy(ptr noundef nonnull %10) #17
  br label %243

87:                                               ; preds = %82
  %88 = getelementptr inbounds %struct.stowplan, ptr %10, i64 0, i32 12, i64 1
  store ptr %51, ptr %88, align 8, !tbaa !17
  %89 = getelementptr inbounds i8, ptr %51, i64 %45
  %90 = getelementptr inbounds %struct.stowplan, ptr %10, i64 0, i32 12, i64 3
  store ptr %89, ptr %90, align 8, !tbaa !17
  %91 = getelementptr inbounds i8, ptr %89, i64 %47
  %92 = getelementptr inbounds %struct.stowplan, ptr %10, i64 0, i32 7
  store ptr %91, ptr %92, align 8, !tbaa !4
  %93 = getelementptr inbounds i8, ptr %91, i64 %26
  %94 = getelementptr inbounds %struct.stowplan, ptr %10, i64 0, i32 8
  store ptr %93, ptr %94, align 8, !tbaa !29
  %95 = getelementptr inbounds i8, ptr %93, i64 %30
  %96 = getelementptr inbounds %struct.stowplan, ptr %10, i64 0, i32 9
  store ptr %95, ptr %96, align 8, !tbaa !30
  %97 = getelementptr inbounds i8, ptr %95, i64 %34
  %98 = getelementptr inbounds %struct.stowplan, ptr %10, i64 0, i32 10
  store ptr %97, ptr %98, align 8, !tbaa !31
  %99 = getelementptr inbounds i8, ptr %51, i64 -4096
  %100 = extractelement <2 x i64> %40, i64 0
  %101 = add i64 %100, 8192
  %102 = add i64 %101, %47
  tail call void @llvm.memset.p0.i64(ptr nonnull align 1 %99, i8 0, i64 %102, i1 false)
  %103 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 11), align 8
  %104 = tail call i64 @llvm.smax.i64(i64 %31, i64 0)
  br label %105

105:                                              ; preds = %112, %87
  %106 = phi i64 [ 0, %87 ], [ %123, %112 ]
  %107 = icmp eq i64 %106, %104
  br i1 %107, label %108, label %112

108:                                              ; preds = %105
  %109 = mul nsw i64 %27, 5
  %110 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 10), align 8
  %111 = tail call i64 @llvm.smax.i64(i64 %109, i64 0)
  br label %124

112:                                              ; preds = %105
  %113 = getelementptr inbounds %struct.place, ptr %103, i64 %106
  %114 = getelementptr inbounds %struct.place, ptr %103, i64 %106, i32 1
  %115 = load i64, ptr %114, align 8, !tbaa !32
  %116 = load i64, ptr %113, align 8, !tbaa !34
  %117 = getelementptr inbounds %struct.stowplan, ptr %10, i64 0, i32 12, i64 %116
  %118 = load ptr, ptr %117, align 8, !tbaa !17
  %119 = ptrtoint ptr %118 to i64
  %120 = add nsw i64 %115, %119
  %121 = load ptr, ptr %96, align 8, !tbaa !30
  %122 = getelementptr inbounds i64, ptr %121, i64 %106
  store i64 %120, ptr %122, align 8, !tbaa !14
  %123 = add nuw i64 %106, 1
  br label %105, !llvm.loop !35

124:                                              ; preds = %131, %108
  %125 = phi i64 [ %136, %131 ], [ 0, %108 ]
  %126 = icmp eq i64 %125, %111
  br i1 %126, label %127, label %131

127:                                              ; preds = %124
  %128 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 12), align 8
  %129 = getelementptr inbounds %struct.stowplan, ptr %10, i64 0, i32 2
  %130 = tail call i64 @llvm.smax.i64(i64 %27, i64 0)
  br label %137

131:                                              ; preds = %124
  %132 = getelementptr inbounds i64, ptr %110, i64 %125
  %133 = load i64, ptr %132, align 8, !tbaa !14
  %134 = load ptr, ptr %94, align 8, !tbaa !29
  %135 = getelementptr inbounds i64, ptr %134, i64 %125
  store i64 %133, ptr %135, align 8, !tbaa !14
  %136 = add nuw i64 %125, 1
  br label %124, !llvm.loop !36

137:                                              ; preds = %167, %127
  %138 = phi i64 [ %172, %167 ], [ 0, %127 ]
  %139 = icmp eq i64 %138, %130
  br i1 %139, label %140, label %145

140:                                              ; preds = %137
  %141 = load i32, ptr %10, align 8, !tbaa !22
  %142 = tail call i32 @llvm.smax.i32(i32 %141, i32 0)
  %143 = zext i32 %142 to i64
  %144 = load ptr, ptr %92, align 8, !tbaa !4
  br label %173

145:                                              ; preds = %137
  %146 = mul nsw i64 %138, 5
  %147 = add nuw nsw i64 %146, 1
  %148 = getelementptr inbounds i64, ptr %110, i64 %147
  %149 = load i64, ptr %148, align 8, !tbaa !14
  %150 = icmp eq i64 %149, -1
  br i1 %150, label %159, label %151

151:                                              ; preds = %145
  %152 = getelementptr inbounds i64, ptr %110, i64 %146
  %153 = load i64, ptr %152, align 8, !tbaa !14
  %154 = getelementptr inbounds ptr, ptr %128, i64 %153
  %155 = load ptr, ptr %154, align 8, !tbaa !17
  %156 = ptrtoint ptr %155 to i64
  %157 = load ptr, ptr %94, align 8, !tbaa !29
  %158 = getelementptr inbounds i64, ptr %157, i64 %146
  store i64 %156, ptr %158, align 8, !tbaa !14
  br label %159

159:                                              ; preds = %151, %145
  %160 = load i32, ptr %10, align 8, !tbaa !22
  %161 = icmp sgt i32 %160, 1
  br i1 %161, label %162, label %167

162:                                              ; preds = %159
  %163 = add nuw nsw i64 %146, 4
  %164 = getelementptr inbounds i64, ptr %110, i64 %163
  %165 = load i64, ptr %164, align 8, !tbaa !14
  %166 = icmp ne i64 %165, 0
  br label %167

167:                                              ; preds = %162, %159
  %168 = phi i1 [ false, %159 ], [ %166, %162 ]
  %169 = zext i1 %168 to i32
  %170 = load i32, ptr %129, align 8, !tbaa !37
  %171 = or i32 %170, %169
  store i32 %171, ptr %129, align 8, !tbaa !37
  %172 = add nuw i64 %138, 1
  br label %137, !llvm.loop !38

173:                                              ; preds = %176, %140
  %174 = phi i64 [ 0, %140 ], [ %181, %176 ]
  %175 = icmp eq i64 %174, %143
  br i1 %175, label %182, label %176

176:                                              ; preds = %173
  %177 = shl i64 %174, 4
  %178 = add nuw nsw i64 %177, 48
  %179 = and i64 %178, 4294967280
  %180 = getelementptr inbounds i64, ptr %144, i64 %179
  store i64 1, ptr %180, align 8, !tbaa !14
  %181 = add nuw nsw i64 %174, 1
  br label %173, !llvm.loop !39

182:                                              ; preds = %173
  %183 = load i32, ptr %129, align 8, !tbaa !37
  %184 = icmp eq i32 %183, 0
  %185 = select i1 %184, i32 1, i32 %141
  %186 = sext i32 %185 to i64
  %187 = ptrtoint ptr %144 to i64
  %188 = load ptr, ptr %98, align 8, !tbaa !31
  %189 = ptrtoint ptr %188 to i64
  %190 = getelementptr inbounds %struct.stowplan, ptr %10, i64 0, i32 11
  store i64 %187, ptr %190, align 8
  %191 = getelementptr inbounds %struct.stowplan, ptr %10, i64 0, i32 11, i64 1
  store i64 %186, ptr %191, align 8
  %192 = getelementptr inbounds %struct.stowplan, ptr %10, i64 0, i32 11, i64 2
  %193 = load <2 x ptr>, ptr %94, align 8, !tbaa !17
  %194 = ptrtoint <2 x ptr> %193 to <2 x i64>
  store <2 x i64> %194, ptr %192, align 8
  %195 = getelementptr inbounds %struct.stowplan, ptr %10, i64 0, i32 11, i64 4
  store i64 0, ptr %195, align 8
  %196 = getelementptr inbounds %struct.stowplan, ptr %10, i64 0, i32 11, i64 5
  store i64 %27, ptr %196, align 8
  %197 = getelementptr inbounds %struct.stowplan, ptr %10, i64 0, i32 11, i64 6
  store i64 %189, ptr %197, align 8
  %198 = getelementptr inbounds %struct.stowplan, ptr %10, i64 0, i32 15
  %199 = tail call i32 @sched_getaffinity(i32 noundef 0, i64 noundef 128, ptr noundef nonnull %198) #15
  %200 = load ptr, ptr %92, align 8, !tbaa !4
  %201 = getelementptr inbounds i64, ptr %200, i64 48
  %202 = load i32, ptr %10, align 8, !tbaa !22
  %203 = shl nsw i32 %202, 4
  %204 = sext i32 %203 to i64
  %205 = getelementptr inbounds i64, ptr %201, i64 %204
  br label %206

206:                                              ; preds = %213, %182
  %207 = phi i32 [ %221, %213 ], [ %202, %182 ]
  %208 = phi i64 [ %220, %213 ], [ 1, %182 ]
  %209 = sext i32 %207 to i64
  %210 = icmp slt i64 %208, %209
  br i1 %210, label %213, label %211

211:                                              ; preds = %206
  %212 = getelementptr inbounds %struct.stowplan, ptr %10, i64 0, i32 5
  br label %222

213:                                              ; preds = %206
  %214 = shl i64 %208, 5
  %215 = and i64 %214, 4294967264
  %216 = getelementptr inbounds i64, ptr %205, i64 %215
  %217 = tail call i32 @pthread_mutex_init(ptr noundef nonnull %216, ptr noundef null) #15
  %218 = getelementptr inbounds i64, ptr %216, i64 16
  %219 = tail call i32 @pthread_cond_init(ptr noundef nonnull %218, ptr noundef null) #15
  %220 = add nuw nsw i64 %208, 1
  %221 = load i32, ptr %10, align 8, !tbaa !22
  br label %206, !llvm.loop !40

222:                                              ; preds = %237, %211
  %223 = phi i32 [ %207, %211 ], [ %239, %237 ]
  %224 = phi i64 [ 1, %211 ], [ %238, %237 ]
  %225 = sext i32 %223 to i64
  %226 = icmp slt i64 %224, %225
  br i1 %226, label %227, label %242

227:                                              ; preds = %222
  %228 = tail call noalias dereferenceable_or_null(16) ptr @malloc(i64 noundef 16) #18
  %229 = icmp eq ptr %228, null
  br i1 %229, label %240, label %230

230:                                              ; preds = %227
  store ptr %10, ptr %228, align 8, !tbaa !41
  %231 = getelementptr inbounds %struct.start, ptr %228, i64 0, i32 1
  %232 = trunc i64 %224 to i32
  store i32 %232, ptr %231, align 8, !tbaa !43
  %233 = getelementptr inbounds %struct.stowplan, ptr %10, i64 0, i32 16, i64 %224
  %234 = tail call i32 @pthread_create(ptr noundef nonnull %233, ptr noundef null, ptr noundef nonnull @serve, ptr noundef nonnull %228) #15
  %235 = icmp eq i32 %234, 0
  br i1 %235, label %237, label %236

236:                                              ; preds = %230
  tail call void @free(ptr noundef nonnull %228) #15
  br label %240

237:                                              ; preds = %230
  store i32 %232, ptr %212, align 4, !tbaa !13
  %238 = add nuw nsw i64 %224, 1
  %239 = load i32, ptr %10, align 8, !tbaa !22
  br label %222, !llvm.loop !44

240:                                              ; preds = %227, %236
  %241 = phi i32 [ 2, %236 ], [ 1, %227 ]
  tail call void @stowplan_destroy(ptr noundef nonnull %10) #17
  br label %243

242:                                              ; preds = %222
  store ptr %10, ptr %0, align 8, !tbaa !17
  br label %243

243:                                              ; preds = %86, %242, %240, %9, %5, %3
  %244 = phi i32 [ 6, %3 ], [ 6, %5 ], [ 1, %9 ], [ 1, %86 ], [ %241, %240 ], [ 0, %242 ]
  ret i32 %244
}

; Function Attrs: minsize mustprogress nofree nounwind optsize willreturn allockind("alloc,zeroed") allocsize(0,1) memory(inaccessiblemem: readwrite)
declare noalias noundef ptr @calloc(i64 noundef, i64 noundef) local_unnamed_addr #6

; Function Attrs: minsize nounwind optsize uwtable
define internal fastcc ptr @map_pages(i64 noundef %0, ptr nocapture noundef writeonly %1, ptr nocapture noundef writeonly %2) unnamed_addr #1 {
  %4 = add i64 %0, 2105343
  %5 = and i64 %4, -2097152
  %6 = add i64 %5, 4194304
  %7 = tail call ptr @mmap(ptr noundef null, i64 noundef %6, i32 noundef 3, i32 noundef 34, i32 noundef -1, i64 noundef 0) #15
  %8 = icmp eq ptr %7, inttoptr (i64 -1 to ptr)
  br i1 %8, label %18, label %9

9:                                                ; preds = %3
  %10 = icmp ugt i64 %0, 2097151
  br i1 %10, label %11, label %13

11:                                               ; preds = %9
  %12 = tail call i32 @madvise(ptr noundef %7, i64 noundef %6, i32 noundef 14) #15
  br label %13

13:                                               ; preds = %11, %9
  store ptr %7, ptr %1, align 8, !tbaa !17
  store i64 %6, ptr %2, align 8, !tbaa !14
  %14 = ptrtoint ptr %7 to i64
  %15 = add i64 %14, 2101247
  %16 = and i64 %15, -2097152
  %17 = inttoptr i64 %16 to ptr
  br label %18

18:                                               ; preds = %3, %13
  %19 = phi ptr [ %17, %13 ], [ null, %3 ]
  ret ptr %19
}

; Function Attrs: mustprogress nocallback nofree nounwind willreturn memory(argmem: write)
declare void @llvm.memset.p0.i64(ptr nocapture writeonly, i8, i64, i1 immarg) #7

; Function Attrs: minsize nounwind optsize
declare i32 @sched_getaffinity(i32 noundef, i64 noundef, ptr noundef) local_unnamed_addr #2

; Function Attrs: minsize nounwind optsize uwtable
define i32 @stowplan_run(ptr noundef %0) local_unnamed_addr #1 {
  %2 = tail call fastcc i32 @begin(ptr noundef %0) #17
  %3 = icmp eq i32 %2, 0
  br i1 %3, label %4, label %7

4:                                                ; preds = %1
  %5 = tail call fastcc i32 @run(ptr noundef %0) #17
  %6 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 4
  store atomic i32 0, ptr %6 release, align 8
  br label %7

7:                                                ; preds = %1, %4
  %8 = phi i32 [ %5, %4 ], [ %2, %1 ]
  ret i32 %8
}

; Function Attrs: minsize nounwind optsize uwtable
define internal fastcc i32 @begin(ptr noundef %0) unnamed_addr #1 {
  %2 = icmp eq ptr %0, null
  br i1 %2, label %17, label %3

3:                                                ; preds = %1
  %4 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 5
  %5 = load i32, ptr %4, align 4, !tbaa !13
  %6 = icmp eq i32 %5, 0
  br i1 %6, label %12, label %7

7:                                                ; preds = %3
  %8 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 6
  %9 = load i32, ptr %8, align 8, !tbaa !12
  %10 = tail call i32 @getpid() #15
  %11 = icmp eq i32 %9, %10
  br i1 %11, label %12, label %17

12:                                               ; preds = %7, %3
  %13 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 4
  %14 = atomicrmw xchg ptr %13, i32 1 acquire, align 4
  %15 = icmp eq i32 %14, 0
  %16 = select i1 %15, i32 0, i32 4
  br label %17

17:                                               ; preds = %7, %1, %12
  %18 = phi i32 [ %16, %12 ], [ 6, %1 ], [ 5, %7 ]
  ret i32 %18
}

; Function Attrs: minsize nounwind optsize uwtable
define internal fastcc i32 @run(ptr noundef %0) unnamed_addr #1 {
  %2 = alloca %struct.cpu_set_t, align 8
  %3 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 2
  %4 = load i32, ptr %3, align 8, !tbaa !37
  %5 = icmp eq i32 %4, 0
  br i1 %5, label %58, label %6

6:                                                ; preds = %1
  %7 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 1
  %8 = load i32, ptr %7, align 4, !tbaa !18
  %9 = and i32 %8, 2
  %10 = icmp eq i32 %9, 0
  br i1 %10, label %11, label %58

11:                                               ; preds = %6
  %12 = tail call i32 @sched_getcpu() #15
  %13 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 3
  %14 = load i32, ptr %13, align 4, !tbaa !23
  %15 = icmp eq i32 %12, %14
  br i1 %15, label %58, label %16

16:                                               ; preds = %11
  store i32 %12, ptr %13, align 4, !tbaa !23
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %2) #19
  %17 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 15
  call void @llvm.memcpy.p0.p0.i64(ptr noundef nonnull align 8 dereferenceable(128) %2, ptr noundef nonnull align 8 dereferenceable(128) %17, i64 128, i1 false), !tbaa.struct !45
  %18 = icmp ult i32 %12, 1024
  br i1 %18, label %19, label %28

19:                                               ; preds = %16
  %20 = zext i32 %12 to i64
  %21 = and i64 %20, 63
  %22 = shl nuw i64 1, %21
  %23 = xor i64 %22, -1
  %24 = lshr i64 %20, 6
  %25 = getelementptr inbounds i64, ptr %2, i64 %24
  %26 = load i64, ptr %25, align 8, !tbaa !14
  %27 = and i64 %26, %23
  store i64 %27, ptr %25, align 8, !tbaa !14
  br label %28

28:                                               ; preds = %19, %16
  br label %29

29:                                               ; preds = %28, %38
  %30 = phi i64 [ %46, %38 ], [ 0, %28 ]
  %31 = phi i1 [ %45, %38 ], [ false, %28 ]
  %32 = freeze i1 %31
  %33 = icmp ugt i64 %30, 1023
  %34 = or i1 %33, %32
  br i1 %34, label %35, label %38

35:                                               ; preds = %29
  %36 = freeze i1 %31
  %37 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 5
  br i1 %36, label %47, label %52

38:                                               ; preds = %29
  %39 = lshr i64 %30, 6
  %40 = getelementptr inbounds i64, ptr %2, i64 %39
  %41 = load i64, ptr %40, align 8, !tbaa !14
  %42 = and i64 %30, 63
  %43 = shl nuw i64 1, %42
  %44 = and i64 %41, %43
  %45 = icmp ne i64 %44, 0
  %46 = add nuw nsw i64 %30, 1
  br label %29, !llvm.loop !47

47:                                               ; preds = %35, %53
  %48 = phi i64 [ %57, %53 ], [ 1, %35 ]
  %49 = load i32, ptr %37, align 4, !tbaa !13
  %50 = sext i32 %49 to i64
  %51 = icmp sgt i64 %48, %50
  br i1 %51, label %52, label %53

52:                                               ; preds = %47, %35
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %2) #19
  br label %58

53:                                               ; preds = %47
  %54 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 16, i64 %48
  %55 = load i64, ptr %54, align 8, !tbaa !14
  %56 = call i32 @pthread_setaffinity_np(i64 noundef %55, i64 noundef 128, ptr noundef nonnull %2) #15
  %57 = add nuw nsw i64 %48, 1
  br label %47, !llvm.loop !48

58:                                               ; preds = %52, %11, %6, %1
  %59 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 11
  call void @stowplan_lead(ptr noundef nonnull %59) #15
  %60 = load atomic i32, ptr @stowplan_raised monotonic, align 4
  %61 = icmp eq i32 %60, 0
  %62 = select i1 %61, i32 0, i32 7
  ret i32 %62
}

; Function Attrs: minsize nounwind optsize uwtable
define i32 @stowplan_run_buffers(ptr noundef %0, ptr noundef readonly %1, ptr noundef readonly %2) local_unnamed_addr #1 {
  %4 = load i64, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 6), align 8, !tbaa !49
  %5 = icmp eq ptr %1, null
  %6 = tail call i64 @llvm.smax.i64(i64 %4, i64 0)
  br label %7

7:                                                ; preds = %15, %3
  %8 = phi i64 [ 0, %3 ], [ %19, %15 ]
  %9 = icmp eq i64 %8, %6
  br i1 %9, label %10, label %14

10:                                               ; preds = %7
  %11 = load i64, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 7), align 8, !tbaa !50
  %12 = icmp eq ptr %2, null
  %13 = tail call i64 @llvm.smax.i64(i64 %11, i64 0)
  br label %20

14:                                               ; preds = %7
  br i1 %5, label %75, label %15

15:                                               ; preds = %14
  %16 = getelementptr inbounds ptr, ptr %1, i64 %8
  %17 = load ptr, ptr %16, align 8, !tbaa !17
  %18 = icmp eq ptr %17, null
  %19 = add nuw i64 %8, 1
  br i1 %18, label %75, label %7, !llvm.loop !51

20:                                               ; preds = %24, %10
  %21 = phi i64 [ %28, %24 ], [ 0, %10 ]
  %22 = icmp eq i64 %21, %13
  br i1 %22, label %29, label %23

23:                                               ; preds = %20
  br i1 %12, label %75, label %24

24:                                               ; preds = %23
  %25 = getelementptr inbounds ptr, ptr %2, i64 %21
  %26 = load ptr, ptr %25, align 8, !tbaa !17
  %27 = icmp eq ptr %26, null
  %28 = add nuw i64 %21, 1
  br i1 %27, label %75, label %20, !llvm.loop !52

29:                                               ; preds = %20
  %30 = tail call fastcc i32 @begin(ptr noundef %0) #17
  %31 = icmp eq i32 %30, 0
  br i1 %31, label %32, label %75

32:                                               ; preds = %29
  %33 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 15), align 8
  %34 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 13), align 8
  br label %35

35:                                               ; preds = %32, %44
  %36 = phi i64 [ %56, %44 ], [ 0, %32 ]
  %37 = icmp eq i64 %36, %6
  br i1 %37, label %38, label %44

38:                                               ; preds = %35
  %39 = tail call fastcc i32 @run(ptr noundef %0) #17
  %40 = freeze i32 %39
  %41 = icmp eq i32 %40, 0
  %42 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 16), align 8
  %43 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 14), align 8
  br i1 %41, label %57, label %60

44:                                               ; preds = %35
  %45 = getelementptr inbounds %struct.place, ptr %33, i64 %36
  %46 = load i64, ptr %45, align 8
  %47 = getelementptr inbounds [2 x i64], ptr %45, i64 0, i64 1
  %48 = load i64, ptr %47, align 8
  %49 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 12, i64 %46
  %50 = load ptr, ptr %49, align 8, !tbaa !17
  %51 = getelementptr inbounds i8, ptr %50, i64 %48
  %52 = getelementptr inbounds ptr, ptr %1, i64 %36
  %53 = load ptr, ptr %52, align 8, !tbaa !17
  %54 = getelementptr inbounds %struct.stowplan_tensor, ptr %34, i64 %36, i32 4
  %55 = load i64, ptr %54, align 8, !tbaa !53
  tail call void @llvm.memcpy.p0.p0.i64(ptr align 1 %51, ptr align 1 %53, i64 %55, i1 false)
  %56 = add nuw i64 %36, 1
  br label %35, !llvm.loop !55

57:                                               ; preds = %38, %62
  %58 = phi i64 [ %74, %62 ], [ 0, %38 ]
  %59 = icmp eq i64 %58, %13
  br i1 %59, label %60, label %62

60:                                               ; preds = %57, %38
  %61 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 4
  store atomic i32 0, ptr %61 release, align 8
  br label %75

62:                                               ; preds = %57
  %63 = getelementptr inbounds ptr, ptr %2, i64 %58
  %64 = load ptr, ptr %63, align 8, !tbaa !17
  %65 = getelementptr inbounds %struct.place, ptr %42, i64 %58
  %66 = load i64, ptr %65, align 8
  %67 = getelementptr inbounds [2 x i64], ptr %65, i64 0, i64 1
  %68 = load i64, ptr %67, align 8
  %69 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 12, i64 %66
  %70 = load ptr, ptr %69, align 8, !tbaa !17
  %71 = getelementptr inbounds i8, ptr %70, i64 %68
  %72 = getelementptr inbounds %struct.stowplan_tensor, ptr %43, i64 %58, i32 4
  %73 = load i64, ptr %72, align 8, !tbaa !53
  tail call void @llvm.memcpy.p0.p0.i64(ptr align 1 %64, ptr align 1 %71, i64 %73, i1 false)
  %74 = add nuw i64 %58, 1
  br label %57, !llvm.loop !56

75:                                               ; preds = %15, %14, %24, %23, %60, %29
  %76 = phi i32 [ %40, %60 ], [ %30, %29 ], [ 6, %23 ], [ 6, %24 ], [ 6, %14 ], [ 6, %15 ]
  ret i32 %76
}

; Function Attrs: mustprogress nocallback nofree nounwind willreturn memory(argmem: readwrite)
declare void @llvm.memcpy.p0.p0.i64(ptr noalias nocapture writeonly, ptr noalias nocapture readonly, i64, i1 immarg) #8

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(none) uwtable
define ptr @stowplan_metadata() local_unnamed_addr #0 {
  %1 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 19), align 8, !tbaa !57
  ret ptr %1
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(none) uwtable
define i32 @stowplan_input_count() local_unnamed_addr #0 {
  %1 = load i64, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 6), align 8, !tbaa !49
  %2 = trunc i64 %1 to i32
  ret i32 %2
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(none) uwtable
define i32 @stowplan_output_count() local_unnamed_addr #0 {
  %1 = load i64, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 7), align 8, !tbaa !50
  %2 = trunc i64 %1 to i32
  ret i32 %2
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(none) uwtable
define ptr @stowplan_input(i32 noundef %0) local_unnamed_addr #0 {
  %2 = icmp slt i32 %0, 0
  br i1 %2, label %10, label %3

3:                                                ; preds = %1
  %4 = zext i32 %0 to i64
  %5 = load i64, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 6), align 8, !tbaa !49
  %6 = icmp sgt i64 %5, %4
  br i1 %6, label %7, label %10

7:                                                ; preds = %3
  %8 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 13), align 8, !tbaa !58
  %9 = getelementptr inbounds %struct.stowplan_tensor, ptr %8, i64 %4
  br label %10

10:                                               ; preds = %1, %3, %7
  %11 = phi ptr [ %9, %7 ], [ null, %3 ], [ null, %1 ]
  ret ptr %11
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(none) uwtable
define ptr @stowplan_output(i32 noundef %0) local_unnamed_addr #0 {
  %2 = icmp slt i32 %0, 0
  br i1 %2, label %10, label %3

3:                                                ; preds = %1
  %4 = zext i32 %0 to i64
  %5 = load i64, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 7), align 8, !tbaa !50
  %6 = icmp sgt i64 %5, %4
  br i1 %6, label %7, label %10

7:                                                ; preds = %3
  %8 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 14), align 8, !tbaa !59
  %9 = getelementptr inbounds %struct.stowplan_tensor, ptr %8, i64 %4
  br label %10

10:                                               ; preds = %1, %3, %7
  %11 = phi ptr [ %9, %7 ], [ null, %3 ], [ null, %1 ]
  ret ptr %11
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(read, inaccessiblemem: none) uwtable
define ptr @stowplan_input_memory(ptr noundef readonly %0, i32 noundef %1) local_unnamed_addr #9 {
  %3 = icmp eq ptr %0, null
  %4 = icmp slt i32 %1, 0
  %5 = or i1 %3, %4
  br i1 %5, label %22, label %6

6:                                                ; preds = %2
  %7 = zext i32 %1 to i64
  %8 = load i64, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 6), align 8, !tbaa !49
  %9 = icmp sle i64 %8, %7
  %10 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 13), align 8
  %11 = icmp eq ptr %10, null
  %12 = select i1 %9, i1 true, i1 %11
  br i1 %12, label %22, label %13

13:                                               ; preds = %6
  %14 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 15), align 8, !tbaa !60
  %15 = getelementptr inbounds %struct.place, ptr %14, i64 %7
  %16 = load i64, ptr %15, align 8
  %17 = getelementptr inbounds [2 x i64], ptr %15, i64 0, i64 1
  %18 = load i64, ptr %17, align 8
  %19 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 12, i64 %16
  %20 = load ptr, ptr %19, align 8, !tbaa !17
  %21 = getelementptr inbounds i8, ptr %20, i64 %18
  br label %22

22:                                               ; preds = %6, %2, %13
  %23 = phi ptr [ %21, %13 ], [ null, %2 ], [ null, %6 ]
  ret ptr %23
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(read, inaccessiblemem: none) uwtable
define ptr @stowplan_output_memory(ptr noundef readonly %0, i32 noundef %1) local_unnamed_addr #9 {
  %3 = icmp eq ptr %0, null
  %4 = icmp slt i32 %1, 0
  %5 = or i1 %3, %4
  br i1 %5, label %22, label %6

6:                                                ; preds = %2
  %7 = zext i32 %1 to i64
  %8 = load i64, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 7), align 8, !tbaa !50
  %9 = icmp sle i64 %8, %7
  %10 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 14), align 8
  %11 = icmp eq ptr %10, null
  %12 = select i1 %9, i1 true, i1 %11
  br i1 %12, label %22, label %13

13:                                               ; preds = %6
  %14 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 16), align 8, !tbaa !61
  %15 = getelementptr inbounds %struct.place, ptr %14, i64 %7
  %16 = load i64, ptr %15, align 8
  %17 = getelementptr inbounds [2 x i64], ptr %15, i64 0, i64 1
  %18 = load i64, ptr %17, align 8
  %19 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 12, i64 %16
  %20 = load ptr, ptr %19, align 8, !tbaa !17
  %21 = getelementptr inbounds i8, ptr %20, i64 %18
  br label %22

22:                                               ; preds = %6, %2, %13
  %23 = phi ptr [ %21, %13 ], [ null, %2 ], [ null, %6 ]
  ret ptr %23
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(none) uwtable
define nonnull ptr @stowplan_message(i32 noundef %0) local_unnamed_addr #0 {
  %2 = icmp ult i32 %0, 8
  br i1 %2, label %3, label %7

3:                                                ; preds = %1
  %4 = sext i32 %0 to i64
  %5 = shl i64 %4, 2
  %6 = call ptr @llvm.load.relative.i64(ptr @reltable.stowplan_message, i64 %5)
  br label %7

7:                                                ; preds = %1, %3
  %8 = phi ptr [ %6, %3 ], [ @.str.8, %1 ]
  ret ptr %8
}

; Function Attrs: minsize nounwind optsize uwtable
define ptr @RegisterCustomOps(ptr noundef %0, ptr nocapture noundef readonly %1) local_unnamed_addr #1 {
  %3 = alloca [512 x i8], align 1
  %4 = alloca i32, align 4
  %5 = alloca i32, align 4
  %6 = alloca i32, align 4
  %7 = load ptr, ptr %1, align 8, !tbaa !62
  %8 = tail call ptr %7(i32 noundef 16) #15
  %9 = icmp eq ptr %8, null
  br i1 %9, label %10, label %19

10:                                               ; preds = %2
  call void @llvm.lifetime.start.p0(i64 512, ptr nonnull %3) #19
  %11 = getelementptr inbounds %struct.ort_api_base, ptr %1, i64 0, i32 1
  %12 = load ptr, ptr %11, align 8, !tbaa !64
  %13 = tail call ptr %12() #15
  %14 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %3, i64 noundef 512, ptr noundef nonnull @.str.9, i32 noundef 16, ptr noundef %13) #15
  %15 = load ptr, ptr %1, align 8, !tbaa !62
  %16 = tail call ptr %15(i32 noundef 1) #15
  %17 = load ptr, ptr %16, align 8, !tbaa !65
  %18 = call ptr %17(i32 noundef 1, ptr noundef nonnull %3) #15
  call void @llvm.lifetime.end.p0(i64 512, ptr nonnull %3) #19
  br label %108

19:                                               ; preds = %2
  call void @llvm.lifetime.start.p0(i64 4, ptr nonnull %4) #19
  store i32 0, ptr %4, align 4, !tbaa !19
  call void @llvm.lifetime.start.p0(i64 4, ptr nonnull %5) #19
  store i32 1, ptr %5, align 4, !tbaa !19
  call void @llvm.lifetime.start.p0(i64 4, ptr nonnull %6) #19
  store i32 1, ptr %6, align 4, !tbaa !19
  %20 = call fastcc ptr @read_option(ptr noundef nonnull %8, ptr noundef %0, ptr noundef nonnull @.str.10, i32 noundef 256, ptr noundef nonnull %4) #17
  %21 = icmp eq ptr %20, null
  br i1 %21, label %22, label %106

22:                                               ; preds = %19
  %23 = call fastcc ptr @read_option(ptr noundef nonnull %8, ptr noundef %0, ptr noundef nonnull @.str.11, i32 noundef 1, ptr noundef nonnull %5) #17
  %24 = icmp eq ptr %23, null
  br i1 %24, label %25, label %106

25:                                               ; preds = %22
  %26 = call fastcc ptr @read_option(ptr noundef nonnull %8, ptr noundef %0, ptr noundef nonnull @.str.12, i32 noundef 1, ptr noundef nonnull %6) #17
  %27 = icmp eq ptr %26, null
  br i1 %27, label %28, label %106

28:                                               ; preds = %25
  %29 = load i32, ptr %5, align 4, !tbaa !19
  %30 = icmp ne i32 %29, 0
  %31 = zext i1 %30 to i32
  %32 = load i32, ptr %6, align 4, !tbaa !19
  %33 = icmp eq i32 %32, 0
  %34 = select i1 %33, i32 2, i32 0
  %35 = or i32 %34, %31
  %36 = tail call i32 @pthread_mutex_lock(ptr noundef nonnull @operators_lock) #15
  %37 = load i32, ptr %4, align 4
  br label %38

38:                                               ; preds = %54, %28
  %39 = phi ptr [ @operators, %28 ], [ %55, %54 ]
  %40 = load ptr, ptr %39, align 8, !tbaa !17
  %41 = icmp eq ptr %40, null
  br i1 %41, label %56, label %42

42:                                               ; preds = %38
  %43 = getelementptr inbounds %struct.operator, ptr %40, i64 0, i32 1
  %44 = load ptr, ptr %43, align 8, !tbaa !67
  %45 = icmp eq ptr %44, %8
  br i1 %45, label %46, label %54

46:                                               ; preds = %42
  %47 = getelementptr inbounds %struct.operator, ptr %40, i64 0, i32 2
  %48 = load i32, ptr %47, align 8, !tbaa !70
  %49 = icmp eq i32 %48, %37
  br i1 %49, label %50, label %54

50:                                               ; preds = %46
  %51 = getelementptr inbounds %struct.operator, ptr %40, i64 0, i32 3
  %52 = load i32, ptr %51, align 4, !tbaa !71
  %53 = icmp eq i32 %52, %35
  br i1 %53, label %95, label %54

54:                                               ; preds = %46, %42, %50
  %55 = getelementptr inbounds %struct.operator, ptr %40, i64 0, i32 5
  br label %38, !llvm.loop !72

56:                                               ; preds = %38
  %57 = tail call noalias dereferenceable_or_null(184) ptr @calloc(i64 noundef 1, i64 noundef 184) #16
  %58 = icmp eq ptr %57, null
  br i1 %58, label %59, label %62

59:                                               ; preds = %56
  %60 = load ptr, ptr %8, align 8, !tbaa !65
  %61 = tail call ptr %60(i32 noundef 1, ptr noundef nonnull @.str.1) #15
  br label %95

62:                                               ; preds = %56
  store i32 16, ptr %57, align 8, !tbaa.struct !73
  %63 = getelementptr inbounds i8, ptr %57, i64 16
  store ptr @operator_name, ptr %63, align 8, !tbaa.struct !74
  %64 = getelementptr inbounds i8, ptr %57, i64 24
  store ptr @operator_provider, ptr %64, align 8, !tbaa.struct !75
  %65 = getelementptr inbounds i8, ptr %57, i64 32
  store ptr @operator_input, ptr %65, align 8, !tbaa.struct !76
  %66 = getelementptr inbounds i8, ptr %57, i64 40
  store ptr @operator_inputs, ptr %66, align 8, !tbaa.struct !77
  %67 = getelementptr inbounds i8, ptr %57, i64 48
  store ptr @operator_output, ptr %67, align 8, !tbaa.struct !78
  %68 = getelementptr inbounds i8, ptr %57, i64 56
  store ptr @operator_outputs, ptr %68, align 8, !tbaa.struct !79
  %69 = getelementptr inbounds i8, ptr %57, i64 72
  store ptr @destroy_kernel, ptr %69, align 8, !tbaa.struct !80
  %70 = getelementptr inbounds i8, ptr %57, i64 80
  store ptr @operator_zero, ptr %70, align 8, !tbaa.struct !81
  %71 = getelementptr inbounds i8, ptr %57, i64 88
  store ptr @operator_zero, ptr %71, align 8, !tbaa.struct !82
  %72 = getelementptr inbounds i8, ptr %57, i64 96
  store ptr @operator_zero, ptr %72, align 8, !tbaa.struct !83
  %73 = getelementptr inbounds i8, ptr %57, i64 136
  store ptr @create_kernel, ptr %73, align 8, !tbaa.struct !84
  %74 = getelementptr inbounds i8, ptr %57, i64 144
  store ptr @compute_kernel, ptr %74, align 8, !tbaa.struct !85
  %75 = getelementptr inbounds %struct.operator, ptr %57, i64 0, i32 1
  store ptr %8, ptr %75, align 8, !tbaa !67
  %76 = getelementptr inbounds %struct.operator, ptr %57, i64 0, i32 2
  store i32 %37, ptr %76, align 8, !tbaa !70
  %77 = getelementptr inbounds %struct.operator, ptr %57, i64 0, i32 3
  store i32 %35, ptr %77, align 4, !tbaa !71
  %78 = getelementptr inbounds %struct.ort_api, ptr %8, i64 0, i32 2
  %79 = load ptr, ptr %78, align 8, !tbaa !86
  %80 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 20), align 8, !tbaa !87
  %81 = getelementptr inbounds %struct.operator, ptr %57, i64 0, i32 4
  %82 = tail call ptr %79(ptr noundef %80, ptr noundef nonnull %81) #15
  %83 = icmp eq ptr %82, null
  br i1 %83, label %84, label %90

84:                                               ; preds = %62
  %85 = getelementptr inbounds %struct.ort_api, ptr %8, i64 0, i32 3
  %86 = load ptr, ptr %85, align 8, !tbaa !88
  %87 = load ptr, ptr %81, align 8, !tbaa !89
  %88 = tail call ptr %86(ptr noundef %87, ptr noundef nonnull %57) #15
  %89 = icmp eq ptr %88, null
  br i1 %89, label %92, label %90

90:                                               ; preds = %84, %62
  %91 = phi ptr [ %88, %84 ], [ %82, %62 ]
  tail call void @free(ptr noundef nonnull %57) #15
  br label %95

92:                                               ; preds = %84
  %93 = load ptr, ptr @operators, align 8, !tbaa !17
  %94 = getelementptr inbounds %struct.operator, ptr %57, i64 0, i32 5
  store ptr %93, ptr %94, align 8, !tbaa !90
  store ptr %57, ptr @operators, align 8, !tbaa !17
  br label %95

95:                                               ; preds = %50, %92, %90, %59
  %96 = phi ptr [ null, %59 ], [ %57, %92 ], [ null, %90 ], [ %40, %50 ]
  %97 = phi ptr [ %61, %59 ], [ null, %92 ], [ %91, %90 ], [ null, %50 ]
  %98 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull @operators_lock) #15
  %99 = icmp eq ptr %97, null
  br i1 %99, label %100, label %106

100:                                              ; preds = %95
  %101 = getelementptr inbounds %struct.ort_api, ptr %8, i64 0, i32 4
  %102 = load ptr, ptr %101, align 8, !tbaa !91
  %103 = getelementptr inbounds %struct.operator, ptr %96, i64 0, i32 4
  %104 = load ptr, ptr %103, align 8, !tbaa !89
  %105 = tail call ptr %102(ptr noundef %0, ptr noundef %104) #15
  br label %106

106:                                              ; preds = %19, %22, %100, %95, %25
  %107 = phi ptr [ %26, %25 ], [ %105, %100 ], [ %97, %95 ], [ %23, %22 ], [ %20, %19 ]
  call void @llvm.lifetime.end.p0(i64 4, ptr nonnull %6) #19
  call void @llvm.lifetime.end.p0(i64 4, ptr nonnull %5) #19
  call void @llvm.lifetime.end.p0(i64 4, ptr nonnull %4) #19
  br label %108

108:                                              ; preds = %106, %10
  %109 = phi ptr [ %107, %106 ], [ %18, %10 ]
  ret ptr %109
}

; Function Attrs: minsize nofree nounwind optsize
declare noundef i32 @snprintf(ptr noalias nocapture noundef writeonly, i64 noundef, ptr nocapture noundef readonly, ...) local_unnamed_addr #10

; Function Attrs: minsize nounwind optsize uwtable
define internal fastcc ptr @read_option(ptr nocapture noundef readonly %0, ptr noundef %1, ptr noundef %2, i32 noundef %3, ptr nocapture noundef writeonly %4) unnamed_addr #1 {
  %6 = alloca i32, align 4
  %7 = alloca [8 x i8], align 8
  %8 = alloca [512 x i8], align 1
  %9 = alloca i64, align 8
  call void @llvm.lifetime.start.p0(i64 4, ptr nonnull %6) #19
  store i32 0, ptr %6, align 4, !tbaa !19
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %7) #19
  store i64 0, ptr %7, align 8
  call void @llvm.lifetime.start.p0(i64 512, ptr nonnull %8) #19
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %9) #19
  store i64 8, ptr %9, align 8, !tbaa !14
  %10 = getelementptr inbounds %struct.ort_api, ptr %0, i64 0, i32 19
  %11 = load ptr, ptr %10, align 8, !tbaa !92
  %12 = call ptr %11(ptr noundef %1, ptr noundef %2, ptr noundef nonnull %6) #15
  %13 = icmp eq ptr %12, null
  %14 = load i32, ptr %6, align 4
  %15 = icmp ne i32 %14, 0
  %16 = select i1 %13, i1 %15, i1 false
  br i1 %16, label %17, label %45

17:                                               ; preds = %5
  %18 = getelementptr inbounds %struct.ort_api, ptr %0, i64 0, i32 20
  %19 = load ptr, ptr %18, align 8, !tbaa !93
  %20 = call ptr %19(ptr noundef %1, ptr noundef %2, ptr noundef nonnull %7, ptr noundef nonnull %9) #15
  %21 = icmp eq ptr %20, null
  br i1 %21, label %22, label %45

22:                                               ; preds = %17, %28
  %23 = phi i32 [ %32, %28 ], [ 0, %17 ]
  %24 = phi ptr [ %33, %28 ], [ %7, %17 ]
  %25 = load i8, ptr %24, align 1, !tbaa !46
  %26 = add i8 %25, -48
  %27 = icmp ult i8 %26, 10
  br i1 %27, label %28, label %34

28:                                               ; preds = %22
  %29 = zext i8 %25 to i32
  %30 = mul nsw i32 %23, 10
  %31 = add i32 %30, -48
  %32 = add i32 %31, %29
  %33 = getelementptr inbounds i8, ptr %24, i64 1
  br label %22, !llvm.loop !94

34:                                               ; preds = %22
  %35 = icmp eq ptr %24, %7
  br i1 %35, label %41, label %36

36:                                               ; preds = %34
  %37 = icmp ne i8 %25, 0
  %38 = icmp sgt i32 %23, %3
  %39 = select i1 %37, i1 true, i1 %38
  br i1 %39, label %41, label %40

40:                                               ; preds = %36
  store i32 %23, ptr %4, align 4, !tbaa !19
  br label %45

41:                                               ; preds = %36, %34
  %42 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %8, i64 noundef 512, ptr noundef nonnull @.str.13, ptr noundef %2, i32 noundef %3, ptr noundef nonnull %7) #15
  %43 = load ptr, ptr %0, align 8, !tbaa !65
  %44 = call ptr %43(i32 noundef 2, ptr noundef nonnull %8) #15
  br label %45

45:                                               ; preds = %40, %41, %17, %5
  %46 = phi ptr [ %12, %5 ], [ %20, %17 ], [ %44, %41 ], [ null, %40 ]
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %9) #19
  call void @llvm.lifetime.end.p0(i64 512, ptr nonnull %8) #19
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %7) #19
  call void @llvm.lifetime.end.p0(i64 4, ptr nonnull %6) #19
  ret ptr %46
}

; Function Attrs: minsize nounwind optsize
declare i32 @pthread_mutex_lock(ptr noundef) local_unnamed_addr #2

; Function Attrs: minsize nounwind optsize
declare i32 @pthread_mutex_unlock(ptr noundef) local_unnamed_addr #2

; Function Attrs: minsize nounwind optsize
declare ptr @mmap(ptr noundef, i64 noundef, i32 noundef, i32 noundef, i32 noundef, i64 noundef) local_unnamed_addr #2

; Function Attrs: minsize nounwind optsize
declare i32 @madvise(ptr noundef, i64 noundef, i32 noundef) local_unnamed_addr #2

; Function Attrs: minsize nounwind optsize
declare i32 @mprotect(ptr noundef, i64 noundef, i32 noundef) local_unnamed_addr #2

; Function Attrs: minsize nounwind optsize
declare i32 @pthread_mutex_init(ptr noundef, ptr noundef) local_unnamed_addr #2

; Function Attrs: minsize nounwind optsize
declare i32 @pthread_cond_init(ptr noundef, ptr noundef) local_unnamed_addr #2

; Function Attrs: minsize mustprogress nofree nounwind optsize willreturn allockind("alloc,uninitialized") allocsize(0) memory(inaccessiblemem: readwrite)
declare noalias noundef ptr @malloc(i64 noundef) local_unnamed_addr #11

; Function Attrs: minsize nounwind optsize
declare i32 @pthread_create(ptr noundef, ptr noundef, ptr noundef, ptr noundef) local_unnamed_addr #2

; Function Attrs: minsize nounwind optsize uwtable
define internal noalias ptr @serve(ptr nocapture noundef %0) #1 {
  %2 = load ptr, ptr %0, align 8, !tbaa !41
  %3 = getelementptr inbounds %struct.start, ptr %0, i64 0, i32 1
  %4 = load i32, ptr %3, align 8, !tbaa !43
  tail call void @free(ptr noundef %0) #15
  %5 = getelementptr inbounds %struct.stowplan, ptr %2, i64 0, i32 7
  %6 = load ptr, ptr %5, align 8, !tbaa !4
  %7 = sext i32 %4 to i64
  %8 = load i32, ptr %2, align 8, !tbaa !22
  %9 = sext i32 %8 to i64
  tail call void @stowplan_help(ptr noundef %6, i64 noundef %7, i64 noundef %9) #15
  ret ptr null
}

; Function Attrs: minsize optsize
declare void @stowplan_help(ptr noundef, i64 noundef, i64 noundef) local_unnamed_addr #3

; Function Attrs: minsize optsize
declare void @stowplan_lead(ptr noundef) local_unnamed_addr #3

; Function Attrs: minsize nounwind optsize
declare i32 @sched_getcpu() local_unnamed_addr #2

; Function Attrs: minsize nounwind optsize
declare i32 @pthread_setaffinity_np(i64 noundef, i64 noundef, ptr noundef) local_unnamed_addr #2

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(none) uwtable
define internal nonnull ptr @operator_name(ptr nocapture readnone %0) #0 {
  ret ptr @.str.14
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(none) uwtable
define internal noalias ptr @operator_provider(ptr nocapture readnone %0) #0 {
  ret ptr null
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(read, inaccessiblemem: none) uwtable
define internal i32 @operator_input(ptr nocapture readnone %0, i64 noundef %1) #9 {
  %3 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 13), align 8, !tbaa !58
  %4 = getelementptr inbounds %struct.stowplan_tensor, ptr %3, i64 %1, i32 3
  %5 = load i32, ptr %4, align 4, !tbaa !95
  ret i32 %5
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(none) uwtable
define internal i64 @operator_inputs(ptr nocapture readnone %0) #0 {
  %2 = load i64, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 6), align 8, !tbaa !49
  ret i64 %2
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(read, inaccessiblemem: none) uwtable
define internal i32 @operator_output(ptr nocapture readnone %0, i64 noundef %1) #9 {
  %3 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 14), align 8, !tbaa !59
  %4 = getelementptr inbounds %struct.stowplan_tensor, ptr %3, i64 %1, i32 3
  %5 = load i32, ptr %4, align 4, !tbaa !95
  ret i32 %5
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(none) uwtable
define internal i64 @operator_outputs(ptr nocapture readnone %0) #0 {
  %2 = load i64, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 7), align 8, !tbaa !50
  ret i64 %2
}

; Function Attrs: minsize nounwind optsize uwtable
define internal void @destroy_kernel(ptr noundef %0) #1 {
  %2 = icmp eq ptr %0, null
  br i1 %2, label %6, label %3

3:                                                ; preds = %1
  %4 = getelementptr inbounds %struct.kernel, ptr %0, i64 0, i32 1
  %5 = load ptr, ptr %4, align 8, !tbaa !96
  tail call void @stowplan_destroy(ptr noundef %5) #17
  tail call void @free(ptr noundef nonnull %0) #15
  br label %6

6:                                                ; preds = %1, %3
  ret void
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(none) uwtable
define internal i32 @operator_zero(ptr nocapture readnone %0, i64 %1) #0 {
  ret i32 0
}

; Function Attrs: minsize nounwind optsize uwtable
define internal ptr @create_kernel(ptr nocapture noundef readonly %0, ptr noundef %1, ptr nocapture readnone %2, ptr nocapture noundef writeonly %3) #1 {
  %5 = tail call noalias dereferenceable_or_null(64) ptr @calloc(i64 noundef 1, i64 noundef 64) #16
  %6 = icmp eq ptr %5, null
  br i1 %6, label %15, label %7

7:                                                ; preds = %4
  %8 = getelementptr inbounds %struct.kernel, ptr %5, i64 0, i32 1
  %9 = getelementptr inbounds %struct.operator, ptr %0, i64 0, i32 2
  %10 = load i32, ptr %9, align 8, !tbaa !70
  %11 = getelementptr inbounds %struct.operator, ptr %0, i64 0, i32 3
  %12 = load i32, ptr %11, align 4, !tbaa !71
  %13 = tail call i32 @stowplan_create(ptr noundef nonnull %8, i32 noundef %10, i32 noundef %12) #17
  %14 = icmp eq i32 %13, 0
  br i1 %14, label %20, label %15

15:                                               ; preds = %4, %7
  %16 = phi i32 [ %13, %7 ], [ 1, %4 ]
  tail call void @free(ptr noundef %5) #15
  %17 = load ptr, ptr %1, align 8, !tbaa !65
  %18 = tail call ptr @stowplan_message(i32 noundef %16) #17
  %19 = tail call ptr %17(i32 noundef 1, ptr noundef nonnull %18) #15
  br label %23

20:                                               ; preds = %7
  store ptr %1, ptr %5, align 8, !tbaa !98
  %21 = getelementptr inbounds %struct.kernel, ptr %5, i64 0, i32 2
  %22 = tail call i32 @pthread_mutex_init(ptr noundef nonnull %21, ptr noundef null) #15
  store ptr %5, ptr %3, align 8, !tbaa !17
  br label %23

23:                                               ; preds = %20, %15
  %24 = phi ptr [ %19, %15 ], [ null, %20 ]
  ret ptr %24
}

; Function Attrs: minsize nounwind optsize uwtable
define internal ptr @compute_kernel(ptr noundef %0, ptr noundef %1) #1 {
  %3 = alloca ptr, align 8
  %4 = alloca ptr, align 8
  %5 = alloca [64 x i64], align 8
  %6 = alloca i64, align 8
  %7 = alloca i32, align 4
  %8 = alloca [512 x i8], align 1
  %9 = alloca [128 x i8], align 1
  %10 = alloca [128 x i8], align 1
  %11 = alloca ptr, align 8
  %12 = alloca ptr, align 8
  %13 = alloca ptr, align 8
  %14 = getelementptr inbounds %struct.kernel, ptr %0, i64 0, i32 2
  %15 = tail call i32 @pthread_mutex_lock(ptr noundef nonnull %14) #15
  %16 = load i64, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 6), align 8, !tbaa !49
  %17 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 13), align 8
  %18 = getelementptr inbounds %struct.kernel, ptr %0, i64 0, i32 1
  %19 = shl i64 %16, 32
  %20 = ashr exact i64 %19, 32
  br label %21

21:                                               ; preds = %129, %2
  %22 = phi i64 [ %131, %129 ], [ 0, %2 ]
  %23 = phi ptr [ %130, %129 ], [ null, %2 ]
  %24 = icmp slt i64 %22, %20
  %25 = icmp eq ptr %23, null
  %26 = select i1 %24, i1 %25, i1 false
  br i1 %26, label %28, label %27

27:                                               ; preds = %21
  br i1 %25, label %132, label %141

28:                                               ; preds = %21
  %29 = load ptr, ptr %0, align 8, !tbaa !98
  %30 = icmp sgt i64 %16, %22
  %31 = getelementptr inbounds %struct.stowplan_tensor, ptr %17, i64 %22
  %32 = select i1 %30, ptr %31, ptr null
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %11) #19
  store ptr null, ptr %11, align 8, !tbaa !17
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %12) #19
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %13) #19
  %33 = getelementptr inbounds %struct.ort_api, ptr %29, i64 0, i32 14
  %34 = load ptr, ptr %33, align 8, !tbaa !99
  %35 = call ptr %34(ptr noundef %1, i64 noundef %22, ptr noundef nonnull %11) #15
  %36 = icmp eq ptr %35, null
  br i1 %36, label %37, label %129

37:                                               ; preds = %28
  %38 = load ptr, ptr %11, align 8, !tbaa !17
  %39 = icmp eq ptr %38, null
  br i1 %39, label %40, label %43

40:                                               ; preds = %37
  %41 = load ptr, ptr %29, align 8, !tbaa !65
  %42 = call ptr %41(i32 noundef 2, ptr noundef nonnull @.str.15) #15
  br label %129

43:                                               ; preds = %37
  %44 = getelementptr inbounds %struct.ort_api, ptr %29, i64 0, i32 12
  %45 = load ptr, ptr %44, align 8, !tbaa !100
  %46 = call ptr %45(ptr noundef nonnull %38, ptr noundef nonnull %12) #15
  %47 = icmp eq ptr %46, null
  br i1 %47, label %48, label %129

48:                                               ; preds = %43
  %49 = load ptr, ptr %12, align 8, !tbaa !17
  call void @llvm.lifetime.start.p0(i64 512, ptr nonnull %5) #19
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %6) #19
  call void @llvm.lifetime.start.p0(i64 4, ptr nonnull %7) #19
  %50 = getelementptr inbounds %struct.ort_api, ptr %29, i64 0, i32 8
  %51 = load ptr, ptr %50, align 8, !tbaa !101
  %52 = call ptr %51(ptr noundef %49, ptr noundef nonnull %7) #15
  %53 = icmp eq ptr %52, null
  br i1 %53, label %54, label %108

54:                                               ; preds = %48
  %55 = getelementptr inbounds %struct.ort_api, ptr %29, i64 0, i32 9
  %56 = load ptr, ptr %55, align 8, !tbaa !102
  %57 = call ptr %56(ptr noundef %49, ptr noundef nonnull %6) #15
  %58 = icmp eq ptr %57, null
  br i1 %58, label %59, label %108

59:                                               ; preds = %54
  %60 = load i64, ptr %6, align 8, !tbaa !14
  %61 = call i64 @llvm.umin.i64(i64 %60, i64 64)
  %62 = getelementptr inbounds %struct.ort_api, ptr %29, i64 0, i32 10
  %63 = load ptr, ptr %62, align 8, !tbaa !103
  %64 = call ptr %63(ptr noundef %49, ptr noundef nonnull %5, i64 noundef %61) #15
  %65 = icmp eq ptr %64, null
  br i1 %65, label %66, label %108

66:                                               ; preds = %59
  %67 = load i32, ptr %7, align 4, !tbaa !19
  %68 = getelementptr inbounds %struct.stowplan_tensor, ptr %32, i64 0, i32 3
  %69 = load i32, ptr %68, align 4, !tbaa !95
  %70 = icmp eq i32 %67, %69
  br i1 %70, label %71, label %78

71:                                               ; preds = %66
  %72 = load i64, ptr %6, align 8, !tbaa !14
  %73 = getelementptr inbounds %struct.stowplan_tensor, ptr %32, i64 0, i32 2
  %74 = load i32, ptr %73, align 8, !tbaa !104
  %75 = sext i32 %74 to i64
  %76 = icmp eq i64 %72, %75
  %77 = zext i1 %76 to i32
  br label %78

78:                                               ; preds = %71, %66
  %79 = phi i32 [ 0, %66 ], [ %77, %71 ]
  %80 = getelementptr inbounds %struct.stowplan_tensor, ptr %32, i64 0, i32 1
  br label %81

81:                                               ; preds = %88, %78
  %82 = phi i32 [ %79, %78 ], [ %95, %88 ]
  %83 = phi i64 [ 0, %78 ], [ %96, %88 ]
  %84 = icmp ult i64 %83, %61
  %85 = icmp ne i32 %82, 0
  %86 = select i1 %84, i1 %85, i1 false
  br i1 %86, label %88, label %87

87:                                               ; preds = %81
  br i1 %85, label %108, label %97

88:                                               ; preds = %81
  %89 = getelementptr inbounds [64 x i64], ptr %5, i64 0, i64 %83
  %90 = load i64, ptr %89, align 8, !tbaa !14
  %91 = load ptr, ptr %80, align 8, !tbaa !105
  %92 = getelementptr inbounds i64, ptr %91, i64 %83
  %93 = load i64, ptr %92, align 8, !tbaa !14
  %94 = icmp eq i64 %90, %93
  %95 = zext i1 %94 to i32
  %96 = add nuw nsw i64 %83, 1
  br label %81, !llvm.loop !106

97:                                               ; preds = %87
  call void @llvm.lifetime.start.p0(i64 512, ptr nonnull %8) #19
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %9) #19
  call void @llvm.memset.p0.i64(ptr noundef nonnull align 1 dereferenceable(128) %9, i8 0, i64 128, i1 false)
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %10) #19
  call void @llvm.memset.p0.i64(ptr noundef nonnull align 1 dereferenceable(128) %10, i8 0, i64 128, i1 false)
  %98 = load ptr, ptr %80, align 8, !tbaa !105
  %99 = getelementptr inbounds %struct.stowplan_tensor, ptr %32, i64 0, i32 2
  %100 = load i32, ptr %99, align 8, !tbaa !104
  %101 = sext i32 %100 to i64
  call fastcc void @write_shape(ptr noundef nonnull %9, ptr noundef %98, i64 noundef %101) #17
  call fastcc void @write_shape(ptr noundef nonnull %10, ptr noundef nonnull %5, i64 noundef %61) #17
  %102 = load ptr, ptr %32, align 8, !tbaa !107
  %103 = load i32, ptr %68, align 4, !tbaa !95
  %104 = load i32, ptr %7, align 4, !tbaa !19
  %105 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %8, i64 noundef 512, ptr noundef nonnull @.str.16, ptr noundef %102, i32 noundef %103, ptr noundef nonnull %9, i32 noundef %104, ptr noundef nonnull %10) #15
  %106 = load ptr, ptr %29, align 8, !tbaa !65
  %107 = call ptr %106(i32 noundef 2, ptr noundef nonnull %8) #15
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %10) #19
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %9) #19
  call void @llvm.lifetime.end.p0(i64 512, ptr nonnull %8) #19
  br label %108

108:                                              ; preds = %97, %87, %59, %54, %48
  %109 = phi ptr [ %52, %48 ], [ %57, %54 ], [ %107, %97 ], [ %64, %59 ], [ null, %87 ]
  call void @llvm.lifetime.end.p0(i64 4, ptr nonnull %7) #19
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %6) #19
  call void @llvm.lifetime.end.p0(i64 512, ptr nonnull %5) #19
  %110 = getelementptr inbounds %struct.ort_api, ptr %29, i64 0, i32 17
  %111 = load ptr, ptr %110, align 8, !tbaa !108
  %112 = load ptr, ptr %12, align 8, !tbaa !17
  call void %111(ptr noundef %112) #15
  %113 = icmp eq ptr %109, null
  br i1 %113, label %114, label %129

114:                                              ; preds = %108
  %115 = getelementptr inbounds %struct.ort_api, ptr %29, i64 0, i32 6
  %116 = load ptr, ptr %115, align 8, !tbaa !109
  %117 = load ptr, ptr %11, align 8, !tbaa !17
  %118 = call ptr %116(ptr noundef %117, ptr noundef nonnull %13) #15
  %119 = icmp eq ptr %118, null
  br i1 %119, label %120, label %129

120:                                              ; preds = %114
  %121 = getelementptr inbounds %struct.stowplan_tensor, ptr %32, i64 0, i32 4
  %122 = load i64, ptr %121, align 8, !tbaa !53
  %123 = icmp eq i64 %122, 0
  br i1 %123, label %129, label %124

124:                                              ; preds = %120
  %125 = load ptr, ptr %18, align 8, !tbaa !96
  %126 = trunc i64 %22 to i32
  %127 = call ptr @stowplan_input_memory(ptr noundef %125, i32 noundef %126) #17
  %128 = load ptr, ptr %13, align 8, !tbaa !17
  call void @llvm.memcpy.p0.p0.i64(ptr align 1 %127, ptr align 1 %128, i64 %122, i1 false)
  br label %129

129:                                              ; preds = %28, %40, %43, %108, %114, %120, %124
  %130 = phi ptr [ %42, %40 ], [ %35, %28 ], [ %46, %43 ], [ %109, %108 ], [ %118, %114 ], [ null, %124 ], [ null, %120 ]
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %13) #19
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %12) #19
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %11) #19
  %131 = add nuw nsw i64 %22, 1
  br label %21, !llvm.loop !110

132:                                              ; preds = %27
  %133 = load ptr, ptr %18, align 8, !tbaa !96
  %134 = call i32 @stowplan_run(ptr noundef %133) #17
  %135 = icmp eq i32 %134, 0
  br i1 %135, label %141, label %136

136:                                              ; preds = %132
  %137 = load ptr, ptr %0, align 8, !tbaa !98
  %138 = load ptr, ptr %137, align 8, !tbaa !65
  %139 = call ptr @stowplan_message(i32 noundef %134) #17
  %140 = call ptr %138(i32 noundef 1, ptr noundef nonnull %139) #15
  br label %141

141:                                              ; preds = %132, %136, %27
  %142 = phi ptr [ %23, %27 ], [ %140, %136 ], [ null, %132 ]
  %143 = load i64, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 7), align 8, !tbaa !50
  %144 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 14), align 8
  %145 = shl i64 %143, 32
  %146 = ashr exact i64 %145, 32
  br label %147

147:                                              ; preds = %187, %141
  %148 = phi i64 [ %189, %187 ], [ 0, %141 ]
  %149 = phi ptr [ %188, %187 ], [ %142, %141 ]
  %150 = icmp slt i64 %148, %146
  %151 = icmp eq ptr %149, null
  %152 = select i1 %150, i1 %151, i1 false
  br i1 %152, label %155, label %153

153:                                              ; preds = %147
  %154 = call i32 @pthread_mutex_unlock(ptr noundef nonnull %14) #15
  ret ptr %149

155:                                              ; preds = %147
  %156 = icmp sgt i64 %143, %148
  %157 = getelementptr inbounds %struct.stowplan_tensor, ptr %144, i64 %148
  %158 = select i1 %156, ptr %157, ptr null
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %3) #19
  store ptr null, ptr %3, align 8, !tbaa !17
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %4) #19
  %159 = load ptr, ptr %0, align 8, !tbaa !98
  %160 = getelementptr inbounds %struct.ort_api, ptr %159, i64 0, i32 15
  %161 = load ptr, ptr %160, align 8, !tbaa !111
  %162 = getelementptr inbounds %struct.stowplan_tensor, ptr %158, i64 0, i32 1
  %163 = load ptr, ptr %162, align 8, !tbaa !105
  %164 = getelementptr inbounds %struct.stowplan_tensor, ptr %158, i64 0, i32 2
  %165 = load i32, ptr %164, align 8, !tbaa !104
  %166 = sext i32 %165 to i64
  %167 = call ptr %161(ptr noundef %1, i64 noundef %148, ptr noundef %163, i64 noundef %166, ptr noundef nonnull %3) #15
  %168 = icmp eq ptr %167, null
  %169 = load ptr, ptr %3, align 8
  %170 = icmp ne ptr %169, null
  %171 = select i1 %168, i1 %170, i1 false
  br i1 %171, label %172, label %187

172:                                              ; preds = %155
  %173 = load ptr, ptr %0, align 8, !tbaa !98
  %174 = getelementptr inbounds %struct.ort_api, ptr %173, i64 0, i32 6
  %175 = load ptr, ptr %174, align 8, !tbaa !109
  %176 = call ptr %175(ptr noundef nonnull %169, ptr noundef nonnull %4) #15
  %177 = icmp eq ptr %176, null
  br i1 %177, label %178, label %187

178:                                              ; preds = %172
  %179 = getelementptr inbounds %struct.stowplan_tensor, ptr %158, i64 0, i32 4
  %180 = load i64, ptr %179, align 8, !tbaa !53
  %181 = icmp eq i64 %180, 0
  br i1 %181, label %187, label %182

182:                                              ; preds = %178
  %183 = load ptr, ptr %4, align 8, !tbaa !17
  %184 = load ptr, ptr %18, align 8, !tbaa !96
  %185 = trunc i64 %148 to i32
  %186 = call ptr @stowplan_output_memory(ptr noundef %184, i32 noundef %185) #17
  call void @llvm.memcpy.p0.p0.i64(ptr align 1 %183, ptr align 1 %186, i64 %180, i1 false)
  br label %187

187:                                              ; preds = %155, %172, %178, %182
  %188 = phi ptr [ %167, %155 ], [ %176, %172 ], [ null, %182 ], [ null, %178 ]
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %4) #19
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %3) #19
  %189 = add nuw nsw i64 %148, 1
  br label %147, !llvm.loop !112
}

; Function Attrs: minsize nofree nounwind optsize uwtable
define internal fastcc void @write_shape(ptr nocapture noundef writeonly %0, ptr nocapture noundef readonly %1, i64 noundef %2) unnamed_addr #12 {
  br label %4

4:                                                ; preds = %11, %3
  %5 = phi i64 [ 0, %3 ], [ %20, %11 ]
  %6 = phi i64 [ 0, %3 ], [ %21, %11 ]
  %7 = icmp ult i64 %6, %2
  %8 = icmp ult i64 %5, 128
  %9 = select i1 %7, i1 %8, i1 false
  br i1 %9, label %11, label %10

10:                                               ; preds = %4
  ret void

11:                                               ; preds = %4
  %12 = getelementptr inbounds i8, ptr %0, i64 %5
  %13 = sub nuw nsw i64 128, %5
  %14 = icmp eq i64 %6, 0
  %15 = select i1 %14, ptr @.str.18, ptr @.str.17
  %16 = getelementptr inbounds i64, ptr %1, i64 %6
  %17 = load i64, ptr %16, align 8, !tbaa !14
  %18 = tail call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef %12, i64 noundef %13, ptr noundef nonnull %15, i64 noundef %17) #15
  %19 = sext i32 %18 to i64
  %20 = add nsw i64 %5, %19
  %21 = add nuw i64 %6, 1
  br label %4, !llvm.loop !113
}

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i64 @llvm.umin.i64(i64, i64) #13

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i64 @llvm.smax.i64(i64, i64) #13

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i32 @llvm.smax.i32(i32, i32) #13

; Function Attrs: nocallback nofree nosync nounwind willreturn memory(argmem: read)
declare ptr @llvm.load.relative.i64(ptr, i64) #14

attributes #0 = { minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(none) uwtable "frame-pointer"="non-leaf" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="generic" "target-features"="+fp-armv8,+neon,+v8a,-fmv,-outline-atomics" }
attributes #1 = { minsize nounwind optsize uwtable "frame-pointer"="non-leaf" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="generic" "target-features"="+fp-armv8,+neon,+v8a,-fmv,-outline-atomics" }
attributes #2 = { minsize nounwind optsize "frame-pointer"="non-leaf" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="generic" "target-features"="+fp-armv8,+neon,+v8a,-fmv,-outline-atomics" }
attributes #3 = { minsize optsize "frame-pointer"="non-leaf" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="generic" "target-features"="+fp-armv8,+neon,+v8a,-fmv,-outline-atomics" }
attributes #4 = { mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite) }
attributes #5 = { minsize mustprogress nounwind optsize willreturn allockind("free") memory(argmem: readwrite, inaccessiblemem: readwrite) "alloc-family"="malloc" "frame-pointer"="non-leaf" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="generic" "target-features"="+fp-armv8,+neon,+v8a,-fmv,-outline-atomics" }
attributes #6 = { minsize mustprogress nofree nounwind optsize willreturn allockind("alloc,zeroed") allocsize(0,1) memory(inaccessiblemem: readwrite) "alloc-family"="malloc" "frame-pointer"="non-leaf" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="generic" "target-features"="+fp-armv8,+neon,+v8a,-fmv,-outline-atomics" }
attributes #7 = { mustprogress nocallback nofree nounwind willreturn memory(argmem: write) }
attributes #8 = { mustprogress nocallback nofree nounwind willreturn memory(argmem: readwrite) }
attributes #9 = { minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(read, inaccessiblemem: none) uwtable "frame-pointer"="non-leaf" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="generic" "target-features"="+fp-armv8,+neon,+v8a,-fmv,-outline-atomics" }
attributes #10 = { minsize nofree nounwind optsize "frame-pointer"="non-leaf" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="generic" "target-features"="+fp-armv8,+neon,+v8a,-fmv,-outline-atomics" }
attributes #11 = { minsize mustprogress nofree nounwind optsize willreturn allockind("alloc,uninitialized") allocsize(0) memory(inaccessiblemem: readwrite) "alloc-family"="malloc" "frame-pointer"="non-leaf" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="generic" "target-features"="+fp-armv8,+neon,+v8a,-fmv,-outline-atomics" }
attributes #12 = { minsize nofree nounwind optsize uwtable "frame-pointer"="non-leaf" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="generic" "target-features"="+fp-armv8,+neon,+v8a,-fmv,-outline-atomics" }
attributes #13 = { nocallback nofree nosync nounwind speculatable willreturn memory(none) }
attributes #14 = { nocallback nofree nosync nounwind willreturn memory(argmem: read) }
attributes #15 = { minsize nounwind optsize }
attributes #16 = { minsize nounwind optsize allocsize(0,1) }
attributes #17 = { minsize optsize }
attributes #18 = { minsize nounwind optsize allocsize(0) }
attributes #19 = { nounwind }

!llvm.module.flags = !{!0, !1, !2, !3}

!0 = !{i32 1, !"wchar_size", i32 4}
!1 = !{i32 8, !"PIC Level", i32 2}
!2 = !{i32 7, !"uwtable", i32 2}
!3 = !{i32 7, !"frame-pointer", i32 1}
!4 = !{!5, !9, i64 32}
!5 = !{!"stowplan", !6, i64 0, !6, i64 4, !6, i64 8, !6, i64 12, !6, i64 16, !6, i64 20, !6, i64 24, !9, i64 32, !9, i64 40, !9, i64 48, !9, i64 56, !7, i64 64, !7, i64 120, !9, i64 152, !10, i64 160, !11, i64 168, !7, i64 296}
!6 = !{!"int", !7, i64 0}
!7 = !{!"omnipotent char", !8, i64 0}
!8 = !{!"Simple C/C++ TBAA"}
!9 = !{!"any pointer", !7, i64 0}
!10 = !{!"long", !7, i64 0}
!11 = !{!"", !7, i64 0}
!12 = !{!5, !6, i64 24}
!13 = !{!5, !6, i64 20}
!14 = !{!10, !10, i64 0}
!15 = distinct !{!15, !16}
!16 = !{!"llvm.loop.mustprogress"}
!17 = !{!9, !9, i64 0}
!18 = !{!5, !6, i64 4}
!19 = !{!6, !6, i64 0}
!20 = !{!5, !9, i64 152}
!21 = !{!5, !10, i64 160}
!22 = !{!5, !6, i64 0}
!23 = !{!5, !6, i64 12}
!24 = !{!25, !10, i64 32}
!25 = !{!"program", !10, i64 0, !10, i64 8, !10, i64 16, !10, i64 24, !10, i64 32, !10, i64 40, !10, i64 48, !10, i64 56, !10, i64 64, !10, i64 72, !9, i64 80, !9, i64 88, !9, i64 96, !9, i64 104, !9, i64 112, !9, i64 120, !9, i64 128, !9, i64 136, !9, i64 144, !9, i64 152, !9, i64 160}
!26 = !{!25, !10, i64 40}
!27 = !{!25, !9, i64 144}
!28 = !{!25, !10, i64 24}
!29 = !{!5, !9, i64 40}
!30 = !{!5, !9, i64 48}
!31 = !{!5, !9, i64 56}
!32 = !{!33, !10, i64 8}
!33 = !{!"place", !10, i64 0, !10, i64 8}
!34 = !{!33, !10, i64 0}
!35 = distinct !{!35, !16}
!36 = distinct !{!36, !16}
!37 = !{!5, !6, i64 8}
!38 = distinct !{!38, !16}
!39 = distinct !{!39, !16}
!40 = distinct !{!40, !16}
!41 = !{!42, !9, i64 0}
!42 = !{!"start", !9, i64 0, !6, i64 8}
!43 = !{!42, !6, i64 8}
!44 = distinct !{!44, !16}
!45 = !{i64 0, i64 128, !46}
!46 = !{!7, !7, i64 0}
!47 = distinct !{!47, !16}
!48 = distinct !{!48, !16}
!49 = !{!25, !10, i64 48}
!50 = !{!25, !10, i64 56}
!51 = distinct !{!51, !16}
!52 = distinct !{!52, !16}
!53 = !{!54, !10, i64 24}
!54 = !{!"", !9, i64 0, !9, i64 8, !6, i64 16, !6, i64 20, !10, i64 24}
!55 = distinct !{!55, !16}
!56 = distinct !{!56, !16}
!57 = !{!25, !9, i64 152}
!58 = !{!25, !9, i64 104}
!59 = !{!25, !9, i64 112}
!60 = !{!25, !9, i64 120}
!61 = !{!25, !9, i64 128}
!62 = !{!63, !9, i64 0}
!63 = !{!"ort_api_base", !9, i64 0, !9, i64 8}
!64 = !{!63, !9, i64 8}
!65 = !{!66, !9, i64 0}
!66 = !{!"ort_api", !9, i64 0, !7, i64 8, !9, i64 208, !9, i64 216, !9, i64 224, !7, i64 232, !9, i64 408, !7, i64 416, !9, i64 480, !9, i64 488, !9, i64 496, !7, i64 504, !9, i64 520, !7, i64 528, !9, i64 720, !9, i64 728, !7, i64 736, !9, i64 792, !7, i64 800, !9, i64 1896, !9, i64 1904}
!67 = !{!68, !9, i64 152}
!68 = !{!"operator", !69, i64 0, !9, i64 152, !6, i64 160, !6, i64 164, !9, i64 168, !9, i64 176}
!69 = !{!"ort_operator", !6, i64 0, !9, i64 8, !9, i64 16, !9, i64 24, !9, i64 32, !9, i64 40, !9, i64 48, !9, i64 56, !9, i64 64, !9, i64 72, !9, i64 80, !9, i64 88, !9, i64 96, !7, i64 104, !9, i64 136, !9, i64 144}
!70 = !{!68, !6, i64 160}
!71 = !{!68, !6, i64 164}
!72 = distinct !{!72, !16}
!73 = !{i64 0, i64 4, !19, i64 8, i64 8, !17, i64 16, i64 8, !17, i64 24, i64 8, !17, i64 32, i64 8, !17, i64 40, i64 8, !17, i64 48, i64 8, !17, i64 56, i64 8, !17, i64 64, i64 8, !17, i64 72, i64 8, !17, i64 80, i64 8, !17, i64 88, i64 8, !17, i64 96, i64 8, !17, i64 104, i64 32, !46, i64 136, i64 8, !17, i64 144, i64 8, !17}
!74 = !{i64 0, i64 8, !17, i64 8, i64 8, !17, i64 16, i64 8, !17, i64 24, i64 8, !17, i64 32, i64 8, !17, i64 40, i64 8, !17, i64 48, i64 8, !17, i64 56, i64 8, !17, i64 64, i64 8, !17, i64 72, i64 8, !17, i64 80, i64 8, !17, i64 88, i64 32, !46, i64 120, i64 8, !17, i64 128, i64 8, !17}
!75 = !{i64 0, i64 8, !17, i64 8, i64 8, !17, i64 16, i64 8, !17, i64 24, i64 8, !17, i64 32, i64 8, !17, i64 40, i64 8, !17, i64 48, i64 8, !17, i64 56, i64 8, !17, i64 64, i64 8, !17, i64 72, i64 8, !17, i64 80, i64 32, !46, i64 112, i64 8, !17, i64 120, i64 8, !17}
!76 = !{i64 0, i64 8, !17, i64 8, i64 8, !17, i64 16, i64 8, !17, i64 24, i64 8, !17, i64 32, i64 8, !17, i64 40, i64 8, !17, i64 48, i64 8, !17, i64 56, i64 8, !17, i64 64, i64 8, !17, i64 72, i64 32, !46, i64 104, i64 8, !17, i64 112, i64 8, !17}
!77 = !{i64 0, i64 8, !17, i64 8, i64 8, !17, i64 16, i64 8, !17, i64 24, i64 8, !17, i64 32, i64 8, !17, i64 40, i64 8, !17, i64 48, i64 8, !17, i64 56, i64 8, !17, i64 64, i64 32, !46, i64 96, i64 8, !17, i64 104, i64 8, !17}
!78 = !{i64 0, i64 8, !17, i64 8, i64 8, !17, i64 16, i64 8, !17, i64 24, i64 8, !17, i64 32, i64 8, !17, i64 40, i64 8, !17, i64 48, i64 8, !17, i64 56, i64 32, !46, i64 88, i64 8, !17, i64 96, i64 8, !17}
!79 = !{i64 0, i64 8, !17, i64 8, i64 8, !17, i64 16, i64 8, !17, i64 24, i64 8, !17, i64 32, i64 8, !17, i64 40, i64 8, !17, i64 48, i64 32, !46, i64 80, i64 8, !17, i64 88, i64 8, !17}
!80 = !{i64 0, i64 8, !17, i64 8, i64 8, !17, i64 16, i64 8, !17, i64 24, i64 8, !17, i64 32, i64 32, !46, i64 64, i64 8, !17, i64 72, i64 8, !17}
!81 = !{i64 0, i64 8, !17, i64 8, i64 8, !17, i64 16, i64 8, !17, i64 24, i64 32, !46, i64 56, i64 8, !17, i64 64, i64 8, !17}
!82 = !{i64 0, i64 8, !17, i64 8, i64 8, !17, i64 16, i64 32, !46, i64 48, i64 8, !17, i64 56, i64 8, !17}
!83 = !{i64 0, i64 8, !17, i64 8, i64 32, !46, i64 40, i64 8, !17, i64 48, i64 8, !17}
!84 = !{i64 0, i64 8, !17, i64 8, i64 8, !17}
!85 = !{i64 0, i64 8, !17}
!86 = !{!66, !9, i64 208}
!87 = !{!25, !9, i64 160}
!88 = !{!66, !9, i64 216}
!89 = !{!68, !9, i64 168}
!90 = !{!68, !9, i64 176}
!91 = !{!66, !9, i64 224}
!92 = !{!66, !9, i64 1896}
!93 = !{!66, !9, i64 1904}
!94 = distinct !{!94, !16}
!95 = !{!54, !6, i64 20}
!96 = !{!97, !9, i64 8}
!97 = !{!"kernel", !9, i64 0, !9, i64 8, !7, i64 16}
!98 = !{!97, !9, i64 0}
!99 = !{!66, !9, i64 720}
!100 = !{!66, !9, i64 520}
!101 = !{!66, !9, i64 480}
!102 = !{!66, !9, i64 488}
!103 = !{!66, !9, i64 496}
!104 = !{!54, !6, i64 16}
!105 = !{!54, !9, i64 8}
!106 = distinct !{!106, !16}
!107 = !{!54, !9, i64 0}
!108 = !{!66, !9, i64 792}
!109 = !{!66, !9, i64 408}
!110 = distinct !{!110, !16}
!111 = !{!66, !9, i64 728}
!112 = distinct !{!112, !16}
!113 = distinct !{!113, !16}
