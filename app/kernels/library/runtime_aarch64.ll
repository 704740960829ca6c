; ModuleID = 'app/kernels/library/runtime.c'
source_filename = "app/kernels/library/runtime.c"
target datalayout = "e-m:e-i8:8:32-i16:16:32-i64:64-i128:128-n32:64-S128"
target triple = "aarch64-unknown-linux-gnu"

%struct.program = type { i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr }
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

; Function Attrs: minsize nounwind optsize uwtable
define i32 @stowplan_check() local_unnamed_addr #0 {
  %1 = load i64, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 9), align 8, !tbaa !4
  %2 = tail call i64 @getauxval(i64 noundef 16) #16
  %3 = and i64 %2, %1
  %4 = icmp eq i64 %3, %1
  %5 = select i1 %4, i32 0, i32 3
  ret i32 %5
}

; Function Attrs: minsize nounwind optsize uwtable
define void @stowplan_destroy(ptr noundef %0) local_unnamed_addr #0 {
  %2 = icmp eq ptr %0, null
  br i1 %2, label %62, label %3

3:                                                ; preds = %1
  %4 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 7
  %5 = load ptr, ptr %4, align 8, !tbaa !10
  %6 = icmp eq ptr %5, null
  br i1 %6, label %33, label %7

7:                                                ; preds = %3
  %8 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 6
  %9 = load i32, ptr %8, align 8, !tbaa !14
  %10 = tail call i32 @getpid() #16
  %11 = icmp eq i32 %9, %10
  br i1 %11, label %12, label %33

12:                                               ; preds = %7
  %13 = load ptr, ptr %4, align 8, !tbaa !10
  %14 = getelementptr inbounds i64, ptr %13, i64 33
  store atomic i64 1, ptr %14 seq_cst, align 8
  %15 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 5
  %16 = load i32, ptr %15, align 4, !tbaa !15
  %17 = icmp eq i32 %16, 0
  br i1 %17, label %22, label %18

18:                                               ; preds = %12
  %19 = load ptr, ptr %4, align 8, !tbaa !10
  %20 = add nsw i32 %16, 1
  %21 = sext i32 %20 to i64
  tail call void @stowplan_wake(ptr noundef %19, i64 noundef %21) #16
  br label %22

22:                                               ; preds = %18, %12
  br label %23

23:                                               ; preds = %22, %28
  %24 = phi i64 [ %32, %28 ], [ 1, %22 ]
  %25 = load i32, ptr %15, align 4, !tbaa !15
  %26 = sext i32 %25 to i64
  %27 = icmp sgt i64 %24, %26
  br i1 %27, label %33, label %28

28:                                               ; preds = %23
  %29 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 16, i64 %24
  %30 = load i64, ptr %29, align 8, !tbaa !16
  %31 = tail call i32 @pthread_join(i64 noundef %30, ptr noundef null) #16
  %32 = add nuw nsw i64 %24, 1
  br label %23, !llvm.loop !17

33:                                               ; preds = %23, %7, %3
  %34 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 12, i64 2
  %35 = load ptr, ptr %34, align 8, !tbaa !19
  %36 = icmp eq ptr %35, null
  br i1 %36, label %53, label %37

37:                                               ; preds = %33
  %38 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 1
  %39 = load i32, ptr %38, align 4, !tbaa !20
  %40 = and i32 %39, 1
  %41 = icmp eq i32 %40, 0
  br i1 %41, label %53, label %42

42:                                               ; preds = %37
  %43 = tail call i32 @pthread_mutex_lock(ptr noundef nonnull @weights_lock) #16
  %44 = load i32, ptr @weights_users, align 4, !tbaa !21
  %45 = add nsw i32 %44, -1
  store i32 %45, ptr @weights_users, align 4, !tbaa !21
  %46 = icmp eq i32 %45, 0
  br i1 %46, label %47, label %51

47:                                               ; preds = %42
  %48 = load ptr, ptr @weights_mapped, align 8, !tbaa !19
  %49 = load i64, ptr @weights_bytes_mapped, align 8, !tbaa !16
  %50 = tail call i32 @munmap(ptr noundef %48, i64 noundef %49) #16
  store ptr null, ptr @weights_copy, align 8, !tbaa !19
  br label %51

51:                                               ; preds = %42, %47
  %52 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull @weights_lock) #16
  br label %53

53:                                               ; preds = %51, %37, %33
  %54 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 13
  %55 = load ptr, ptr %54, align 8, !tbaa !22
  %56 = icmp eq ptr %55, null
  br i1 %56, label %61, label %57

57:                                               ; preds = %53
  %58 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 14
  %59 = load i64, ptr %58, align 8, !tbaa !23
  %60 = tail call i32 @munmap(ptr noundef nonnull %55, i64 noundef %59) #16
  br label %61

61:                                               ; preds = %57, %53
  tail call void @free(ptr noundef nonnull %0) #16
  br label %62

62:                                               ; preds = %1, %61
  ret void
}

; Function Attrs: minsize nounwind optsize
declare i32 @getpid() local_unnamed_addr #1

; Function Attrs: minsize optsize
declare void @stowplan_wake(ptr noundef, i64 noundef) local_unnamed_addr #2

; Function Attrs: mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite)
declare void @llvm.lifetime.start.p0(i64 immarg, ptr nocapture) #3

; Function Attrs: minsize optsize
declare i32 @pthread_join(i64 noundef, ptr noundef) local_unnamed_addr #2

; Function Attrs: mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite)
declare void @llvm.lifetime.end.p0(i64 immarg, ptr nocapture) #3

; Function Attrs: minsize nounwind optsize
declare i32 @munmap(ptr noundef, i64 noundef) local_unnamed_addr #1

; Function Attrs: minsize mustprogress nounwind optsize willreturn allockind("free") memory(argmem: readwrite, inaccessiblemem: readwrite)
declare void @free(ptr allocptr nocapture noundef) local_unnamed_addr #4

; Function Attrs: minsize nounwind optsize uwtable
define i32 @stowplan_create(ptr noundef writeonly %0, i32 noundef %1, i32 noundef %2) local_unnamed_addr #0 {
  %4 = icmp eq ptr %0, null
  br i1 %4, label %246, label %5

5:                                                ; preds = %3
  store ptr null, ptr %0, align 8, !tbaa !19
  %6 = icmp ugt i32 %2, 3
  %7 = icmp slt i32 %1, 0
  %8 = or i1 %7, %6
  br i1 %8, label %246, label %9

9:                                                ; preds = %5
  %10 = tail call i32 @stowplan_check() #17
  %11 = icmp eq i32 %10, 0
  br i1 %11, label %12, label %246

12:                                               ; preds = %9
  %13 = tail call noalias dereferenceable_or_null(2344) ptr @calloc(i64 noundef 1, i64 noundef 2344) #18
  %14 = icmp eq ptr %13, null
  br i1 %14, label %246, label %15

15:                                               ; preds = %12
  %16 = icmp ne i32 %1, 0
  %17 = zext i32 %1 to i64
  %18 = load i64, ptr @stowplan_program, align 8
  %19 = icmp sgt i64 %18, %17
  %20 = select i1 %16, i1 %19, i1 false
  %21 = trunc i64 %18 to i32
  %22 = select i1 %20, i32 %1, i32 %21
  store i32 %22, ptr %13, align 8, !tbaa !24
  %23 = getelementptr inbounds %struct.stowplan, ptr %13, i64 0, i32 1
  store i32 %2, ptr %23, align 4, !tbaa !20
  %24 = getelementptr inbounds %struct.stowplan, ptr %13, i64 0, i32 3
  store i32 -1, ptr %24, align 4, !tbaa !25
  %25 = tail call i32 @getpid() #16
  %26 = getelementptr inbounds %struct.stowplan, ptr %13, i64 0, i32 6
  store i32 %25, ptr %26, align 8, !tbaa !14
  %27 = sext i32 %22 to i64
  %28 = mul nsw i64 %27, 384
  %29 = add nsw i64 %28, 384
  %30 = load i64, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 4), align 8, !tbaa !26
  %31 = mul i64 %30, 40
  %32 = add i64 %31, 63
  %33 = and i64 %32, -64
  %34 = load i64, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 5), align 8, !tbaa !27
  %35 = shl i64 %34, 3
  %36 = add i64 %35, 71
  %37 = and i64 %36, -64
  %38 = shl i64 %30, 3
  %39 = add i64 %38, 71
  %40 = and i64 %39, -64
  %41 = load <2 x i64>, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 1), align 8, !tbaa !16
  %42 = add <2 x i64> %41, <i64 63, i64 63>
  %43 = and <2 x i64> %42, <i64 -64, i64 -64>
  %44 = add <2 x i64> %43, <i64 4096, i64 4096>
  %45 = add i64 %33, %29
  %46 = add i64 %45, %40
  %47 = add i64 %46, %37
  %48 = extractelement <2 x i64> %44, i64 0
  %49 = add i64 %47, %48
  %50 = extractelement <2 x i64> %44, i64 1
  %51 = add i64 %49, %50
  %52 = getelementptr inbounds %struct.stowplan, ptr %13, i64 0, i32 13
  %53 = getelementptr inbounds %struct.stowplan, ptr %13, i64 0, i32 14
  %54 = tail call fastcc ptr @map_pages(i64 noundef %51, ptr noundef nonnull %52, ptr noundef nonnull %53) #17
  %55 = icmp eq ptr %54, null
  br i1 %55, label %56, label %58

56:                                               ; preds = %15
  %57 = getelementptr inbounds %struct.stowplan, ptr %13, i64 0, i32 12, i64 2
  store ptr null, ptr %57, align 8, !tbaa !19
  br label %89

58:                                               ; preds = %15
  %59 = and i32 %2, 1
  %60 = icmp eq i32 %59, 0
  br i1 %60, label %61, label %63

61:                                               ; preds = %58
  %62 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 19), align 8, !tbaa !28
  br label %85

63:                                               ; preds = %58
  %64 = tail call i32 @pthread_mutex_lock(ptr noundef nonnull @weights_lock) #16
  %65 = load i32, ptr @weights_users, align 4, !tbaa !21
  %66 = icmp eq i32 %65, 0
  br i1 %66, label %67, label %76

67:                                               ; preds = %63
  %68 = load i64, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 3), align 8, !tbaa !29
  %69 = tail call fastcc ptr @map_pages(i64 noundef %68, ptr noundef nonnull @weights_mapped, ptr noundef nonnull @weights_bytes_mapped) #17
  store ptr %69, ptr @weights_copy, align 8, !tbaa !19
  %70 = icmp eq ptr %69, null
  br i1 %70, label %82, label %71

71:                                               ; preds = %67
  %72 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 19), align 8, !tbaa !28
  tail call void @llvm.memcpy.p0.p0.i64(ptr nonnull align 1 %69, ptr align 1 %72, i64 %68, i1 false)
  %73 = load ptr, ptr @weights_mapped, align 8, !tbaa !19
  %74 = load i64, ptr @weights_bytes_mapped, align 8, !tbaa !16
  %75 = tail call i32 @mprotect(ptr noundef %73, i64 noundef %74, i32 noundef 1) #16
  br label %76

76:                                               ; preds = %71, %63
  %77 = load ptr, ptr @weights_copy, align 8, !tbaa !19
  %78 = icmp eq ptr %77, null
  br i1 %78, label %82, label %79

79:                                               ; preds = %76
  %80 = load i32, ptr @weights_users, align 4, !tbaa !21
  %81 = add nsw i32 %80, 1
  store i32 %81, ptr @weights_users, align 4, !tbaa !21
  br label %82

82:                                               ; preds = %79, %76, %67
  %83 = phi ptr [ %77, %79 ], [ null, %76 ], [ null, %67 ]
  %84 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull @weights_lock) #16
  br label %85

85:                                               ; preds = %82, %61
  %86 = phi ptr [ %83, %82 ], [ %62, %61 ]
  %87 = getelementptr inbounds %struct.stowplan, ptr %13, i64 0, i32 12, i64 2
  store ptr %86, ptr %87, align 8, !tbaa !19
  %88 = icmp eq ptr %86, null
  br i1 %88, label %89, label %90

89:                                               ; preds = %56, %85
  tail call void @stowplan_destroy(ptr noundef nonnull %13) #17
  br label %246

90:                                               ; preds = %85
  %91 = getelementptr inbounds %struct.stowplan, ptr %13, i64 0, i32 12, i64 1
  store ptr %54, ptr %91, align 8, !tbaa !19
  %92 = getelementptr inbounds i8, ptr %54, i64 %48
  %93 = getelementptr inbounds %struct.stowplan, ptr %13, i64 0, i32 12, i64 3
  store ptr %92, ptr %93, align 8, !tbaa !19
  %94 = getelementptr inbounds i8, ptr %92, i64 %50
  %95 = getelementptr inbounds %struct.stowplan, ptr %13, i64 0, i32 7
  store ptr %94, ptr %95, align 8, !tbaa !10
  %96 = getelementptr inbounds i8, ptr %94, i64 %29
  %97 = getelementptr inbounds %struct.stowplan, ptr %13, i64 0, i32 8
  store ptr %96, ptr %97, align 8, !tbaa !30
  %98 = getelementptr inbounds i8, ptr %96, i64 %33
  %99 = getelementptr inbounds %struct.stowplan, ptr %13, i64 0, i32 9
  store ptr %98, ptr %99, align 8, !tbaa !31
  %100 = getelementptr inbounds i8, ptr %98, i64 %37
  %101 = getelementptr inbounds %struct.stowplan, ptr %13, i64 0, i32 10
  store ptr %100, ptr %101, align 8, !tbaa !32
  %102 = getelementptr inbounds i8, ptr %54, i64 -4096
  %103 = extractelement <2 x i64> %43, i64 0
  %104 = add i64 %103, 8192
  %105 = add i64 %104, %50
  tail call void @llvm.memset.p0.i64(ptr nonnull align 1 %102, i8 0, i64 %105, i1 false)
  %106 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 11), align 8
  %107 = tail call i64 @llvm.smax.i64(i64 %34, i64 0)
  br label %108

108:                                              ; preds = %115, %90
  %109 = phi i64 [ 0, %90 ], [ %126, %115 ]
  %110 = icmp eq i64 %109, %107
  br i1 %110, label %111, label %115

111:                                              ; preds = %108
  %112 = mul nsw i64 %30, 5
  %113 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 10), align 8
  %114 = tail call i64 @llvm.smax.i64(i64 %112, i64 0)
  br label %127

115:                                              ; preds = %108
  %116 = getelementptr inbounds %struct.place, ptr %106, i64 %109
  %117 = getelementptr inbounds %struct.place, ptr %106, i64 %109, i32 1
  %118 = load i64, ptr %117, align 8, !tbaa !33
  %119 = load i64, ptr %116, align 8, !tbaa !35
  %120 = getelementptr inbounds %struct.stowplan, ptr %13, i64 0, i32 12, i64 %119
  %121 = load ptr, ptr %120, align 8, !tbaa !19
  %122 = ptrtoint ptr %121 to i64
  %123 = add nsw i64 %118, %122
  %124 = load ptr, ptr %99, align 8, !tbaa !31
  %125 = getelementptr inbounds i64, ptr %124, i64 %109
  store i64 %123, ptr %125, align 8, !tbaa !16
  %126 = add nuw i64 %109, 1
  br label %108, !llvm.loop !36

127:                                              ; preds = %134, %111
  %128 = phi i64 [ %139, %134 ], [ 0, %111 ]
  %129 = icmp eq i64 %128, %114
  br i1 %129, label %130, label %134

130:                                              ; preds = %127
  %131 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 12), align 8
  %132 = getelementptr inbounds %struct.stowplan, ptr %13, i64 0, i32 2
  %133 = tail call i64 @llvm.smax.i64(i64 %30, i64 0)
  br label %140

134:                                              ; preds = %127
  %135 = getelementptr inbounds i64, ptr %113, i64 %128
  %136 = load i64, ptr %135, align 8, !tbaa !16
  %137 = load ptr, ptr %97, align 8, !tbaa !30
  %138 = getelementptr inbounds i64, ptr %137, i64 %128
  store i64 %136, ptr %138, align 8, !tbaa !16
  %139 = add nuw i64 %128, 1
  br label %127, !llvm.loop !37

140:                                              ; preds = %170, %130
  %141 = phi i64 [ %175, %170 ], [ 0, %130 ]
  %142 = icmp eq i64 %141, %133
  br i1 %142, label %143, label %148

143:                                              ; preds = %140
  %144 = load i32, ptr %13, align 8, !tbaa !24
  %145 = tail call i32 @llvm.smax.i32(i32 %144, i32 0)
  %146 = zext i32 %145 to i64
  %147 = load ptr, ptr %95, align 8, !tbaa !10
  br label %176

148:                                              ; preds = %140
  %149 = mul nsw i64 %141, 5
  %150 = add nuw nsw i64 %149, 1
  %151 = getelementptr inbounds i64, ptr %113, i64 %150
  %152 = load i64, ptr %151, align 8, !tbaa !16
  %153 = icmp eq i64 %152, -1
  br i1 %153, label %162, label %154

154:                                              ; preds = %148
  %155 = getelementptr inbounds i64, ptr %113, i64 %149
  %156 = load i64, ptr %155, align 8, !tbaa !16
  %157 = getelementptr inbounds ptr, ptr %131, i64 %156
  %158 = load ptr, ptr %157, align 8, !tbaa !19
  %159 = ptrtoint ptr %158 to i64
  %160 = load ptr, ptr %97, align 8, !tbaa !30
  %161 = getelementptr inbounds i64, ptr %160, i64 %149
  store i64 %159, ptr %161, align 8, !tbaa !16
  br label %162

162:                                              ; preds = %154, %148
  %163 = load i32, ptr %13, align 8, !tbaa !24
  %164 = icmp sgt i32 %163, 1
  br i1 %164, label %165, label %170

165:                                              ; preds = %162
  %166 = add nuw nsw i64 %149, 4
  %167 = getelementptr inbounds i64, ptr %113, i64 %166
  %168 = load i64, ptr %167, align 8, !tbaa !16
  %169 = icmp ne i64 %168, 0
  br label %170

170:                                              ; preds = %165, %162
  %171 = phi i1 [ false, %162 ], [ %169, %165 ]
  %172 = zext i1 %171 to i32
  %173 = load i32, ptr %132, align 8, !tbaa !38
  %174 = or i32 %173, %172
  store i32 %174, ptr %132, align 8, !tbaa !38
  %175 = add nuw i64 %141, 1
  br label %140, !llvm.loop !39

176:                                              ; preds = %179, %143
  %177 = phi i64 [ 0, %143 ], [ %184, %179 ]
  %178 = icmp eq i64 %177, %146
  br i1 %178, label %185, label %179

179:                                              ; preds = %176
  %180 = shl i64 %177, 4
  %181 = add nuw nsw i64 %180, 48
  %182 = and i64 %181, 4294967280
  %183 = getelementptr inbounds i64, ptr %147, i64 %182
  store i64 1, ptr %183, align 8, !tbaa !16
  %184 = add nuw nsw i64 %177, 1
  br label %176, !llvm.loop !40

185:                                              ; preds = %176
  %186 = load i32, ptr %132, align 8, !tbaa !38
  %187 = icmp eq i32 %186, 0
  %188 = select i1 %187, i32 1, i32 %144
  %189 = sext i32 %188 to i64
  %190 = ptrtoint ptr %147 to i64
  %191 = load ptr, ptr %101, align 8, !tbaa !32
  %192 = ptrtoint ptr %191 to i64
  %193 = getelementptr inbounds %struct.stowplan, ptr %13, i64 0, i32 11
  store i64 %190, ptr %193, align 8
  %194 = getelementptr inbounds %struct.stowplan, ptr %13, i64 0, i32 11, i64 1
  store i64 %189, ptr %194, align 8
  %195 = getelementptr inbounds %struct.stowplan, ptr %13, i64 0, i32 11, i64 2
  %196 = load <2 x ptr>, ptr %97, align 8, !tbaa !19
  %197 = ptrtoint <2 x ptr> %196 to <2 x i64>
  store <2 x i64> %197, ptr %195, align 8
  %198 = getelementptr inbounds %struct.stowplan, ptr %13, i64 0, i32 11, i64 4
  store i64 0, ptr %198, align 8
  %199 = getelementptr inbounds %struct.stowplan, ptr %13, i64 0, i32 11, i64 5
  store i64 %30, ptr %199, align 8
  %200 = getelementptr inbounds %struct.stowplan, ptr %13, i64 0, i32 11, i64 6
  store i64 %192, ptr %200, align 8
  %201 = getelementptr inbounds %struct.stowplan, ptr %13, i64 0, i32 15
  %202 = tail call i32 @sched_getaffinity(i32 noundef 0, i64 noundef 128, ptr noundef nonnull %201) #16
  %203 = load ptr, ptr %95, align 8, !tbaa !10
  %204 = getelementptr inbounds i64, ptr %203, i64 48
  %205 = load i32, ptr %13, align 8, !tbaa !24
  %206 = shl nsw i32 %205, 4
  %207 = sext i32 %206 to i64
  %208 = getelementptr inbounds i64, ptr %204, i64 %207
  br label %209

209:                                              ; preds = %216, %185
  %210 = phi i32 [ %224, %216 ], [ %205, %185 ]
  %211 = phi i64 [ %223, %216 ], [ 1, %185 ]
  %212 = sext i32 %210 to i64
  %213 = icmp slt i64 %211, %212
  br i1 %213, label %216, label %214

214:                                              ; preds = %209
  %215 = getelementptr inbounds %struct.stowplan, ptr %13, i64 0, i32 5
  br label %225

216:                                              ; preds = %209
  %217 = shl i64 %211, 5
  %218 = and i64 %217, 4294967264
  %219 = getelementptr inbounds i64, ptr %208, i64 %218
  %220 = tail call i32 @pthread_mutex_init(ptr noundef nonnull %219, ptr noundef null) #16
  %221 = getelementptr inbounds i64, ptr %219, i64 16
  %222 = tail call i32 @pthread_cond_init(ptr noundef nonnull %221, ptr noundef null) #16
  %223 = add nuw nsw i64 %211, 1
  %224 = load i32, ptr %13, align 8, !tbaa !24
  br label %209, !llvm.loop !41

225:                                              ; preds = %240, %214
  %226 = phi i32 [ %210, %214 ], [ %242, %240 ]
  %227 = phi i64 [ 1, %214 ], [ %241, %240 ]
  %228 = sext i32 %226 to i64
  %229 = icmp slt i64 %227, %228
  br i1 %229, label %230, label %245

230:                                              ; preds = %225
  %231 = tail call noalias dereferenceable_or_null(16) ptr @malloc(i64 noundef 16) #19
  %232 = icmp eq ptr %231, null
  br i1 %232, label %243, label %233

233:                                              ; preds = %230
  store ptr %13, ptr %231, align 8, !tbaa !42
  %234 = getelementptr inbounds %struct.start, ptr %231, i64 0, i32 1
  %235 = trunc i64 %227 to i32
  store i32 %235, ptr %234, align 8, !tbaa !44
  %236 = getelementptr inbounds %struct.stowplan, ptr %13, i64 0, i32 16, i64 %227
  %237 = tail call i32 @pthread_create(ptr noundef nonnull %236, ptr noundef null, ptr noundef nonnull @serve, ptr noundef nonnull %231) #16
  %238 = icmp eq i32 %237, 0
  br i1 %238, label %240, label %239

239:                                              ; preds = %233
  tail call void @free(ptr noundef nonnull %231) #16
  br label %243

240:                                              ; preds = %233
  store i32 %235, ptr %215, align 4, !tbaa !15
  %241 = add nuw nsw i64 %227, 1
  %242 = load i32, ptr %13, align 8, !tbaa !24
  br label %225, !llvm.loop !45

243:                                              ; preds = %230, %239
  %244 = phi i32 [ 2, %239 ], [ 1, %230 ]
  tail call void @stowplan_destroy(ptr noundef nonnull %13) #17
  br label %246

245:                                              ; preds = %225
  store ptr %13, ptr %0, align 8, !tbaa !19
  br label %246

246:                                              ; preds = %9, %89, %245, %243, %12, %5, %3
  %247 = phi i32 [ 6, %3 ], [ 6, %5 ], [ %10, %9 ], [ 1, %12 ], [ 1, %89 ], [ %244, %243 ], [ 0, %245 ]
  ret i32 %247
}

; Function Attrs: minsize mustprogress nofree nounwind optsize willreturn allockind("alloc,zeroed") allocsize(0,1) memory(inaccessiblemem: readwrite)
declare noalias noundef ptr @calloc(i64 noundef, i64 noundef) local_unnamed_addr #5

; Function Attrs: minsize nounwind optsize uwtable
define internal fastcc ptr @map_pages(i64 noundef %0, ptr nocapture noundef writeonly %1, ptr nocapture noundef writeonly %2) unnamed_addr #0 {
  %4 = add i64 %0, 2105343
  %5 = and i64 %4, -2097152
  %6 = add i64 %5, 4194304
  %7 = tail call ptr @mmap(ptr noundef null, i64 noundef %6, i32 noundef 3, i32 noundef 34, i32 noundef -1, i64 noundef 0) #16
  %8 = icmp eq ptr %7, inttoptr (i64 -1 to ptr)
  br i1 %8, label %18, label %9

9:                                                ; preds = %3
  %10 = icmp ugt i64 %0, 2097151
  br i1 %10, label %11, label %13

11:                                               ; preds = %9
  %12 = tail call i32 @madvise(ptr noundef %7, i64 noundef %6, i32 noundef 14) #16
  br label %13

13:                                               ; preds = %11, %9
  store ptr %7, ptr %1, align 8, !tbaa !19
  store i64 %6, ptr %2, align 8, !tbaa !16
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
declare void @llvm.memset.p0.i64(ptr nocapture writeonly, i8, i64, i1 immarg) #6

; Function Attrs: minsize nounwind optsize
declare i32 @sched_getaffinity(i32 noundef, i64 noundef, ptr noundef) local_unnamed_addr #1

; Function Attrs: minsize nounwind optsize uwtable
define i32 @stowplan_run(ptr noundef %0) local_unnamed_addr #0 {
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
define internal fastcc i32 @begin(ptr noundef %0) unnamed_addr #0 {
  %2 = icmp eq ptr %0, null
  br i1 %2, label %17, label %3

3:                                                ; preds = %1
  %4 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 5
  %5 = load i32, ptr %4, align 4, !tbaa !15
  %6 = icmp eq i32 %5, 0
  br i1 %6, label %12, label %7

7:                                                ; preds = %3
  %8 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 6
  %9 = load i32, ptr %8, align 8, !tbaa !14
  %10 = tail call i32 @getpid() #16
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
define internal fastcc i32 @run(ptr noundef %0) unnamed_addr #0 {
  %2 = alloca %struct.cpu_set_t, align 8
  %3 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 2
  %4 = load i32, ptr %3, align 8, !tbaa !38
  %5 = icmp eq i32 %4, 0
  br i1 %5, label %58, label %6

6:                                                ; preds = %1
  %7 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 1
  %8 = load i32, ptr %7, align 4, !tbaa !20
  %9 = and i32 %8, 2
  %10 = icmp eq i32 %9, 0
  br i1 %10, label %11, label %58

11:                                               ; preds = %6
  %12 = tail call i32 @sched_getcpu() #16
  %13 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 3
  %14 = load i32, ptr %13, align 4, !tbaa !25
  %15 = icmp eq i32 %12, %14
  br i1 %15, label %58, label %16

16:                                               ; preds = %11
  store i32 %12, ptr %13, align 4, !tbaa !25
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %2) #20
  %17 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 15
  call void @llvm.memcpy.p0.p0.i64(ptr noundef nonnull align 8 dereferenceable(128) %2, ptr noundef nonnull align 8 dereferenceable(128) %17, i64 128, i1 false), !tbaa.struct !46
  %18 = icmp ult i32 %12, 1024
  br i1 %18, label %19, label %28

19:                                               ; preds = %16
  %20 = zext i32 %12 to i64
  %21 = and i64 %20, 63
  %22 = shl nuw i64 1, %21
  %23 = xor i64 %22, -1
  %24 = lshr i64 %20, 6
  %25 = getelementptr inbounds i64, ptr %2, i64 %24
  %26 = load i64, ptr %25, align 8, !tbaa !16
  %27 = and i64 %26, %23
  store i64 %27, ptr %25, align 8, !tbaa !16
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
  %41 = load i64, ptr %40, align 8, !tbaa !16
  %42 = and i64 %30, 63
  %43 = shl nuw i64 1, %42
  %44 = and i64 %41, %43
  %45 = icmp ne i64 %44, 0
  %46 = add nuw nsw i64 %30, 1
  br label %29, !llvm.loop !48

47:                                               ; preds = %35, %53
  %48 = phi i64 [ %57, %53 ], [ 1, %35 ]
  %49 = load i32, ptr %37, align 4, !tbaa !15
  %50 = sext i32 %49 to i64
  %51 = icmp sgt i64 %48, %50
  br i1 %51, label %52, label %53

52:                                               ; preds = %47, %35
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %2) #20
  br label %58

53:                                               ; preds = %47
  %54 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 16, i64 %48
  %55 = load i64, ptr %54, align 8, !tbaa !16
  %56 = call i32 @pthread_setaffinity_np(i64 noundef %55, i64 noundef 128, ptr noundef nonnull %2) #16
  %57 = add nuw nsw i64 %48, 1
  br label %47, !llvm.loop !49

58:                                               ; preds = %52, %11, %6, %1
  %59 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 11
  call void @stowplan_lead(ptr noundef nonnull %59) #16
  %60 = load atomic i32, ptr @stowplan_raised monotonic, align 4
  %61 = icmp eq i32 %60, 0
  %62 = select i1 %61, i32 0, i32 7
  ret i32 %62
}

; Function Attrs: minsize nounwind optsize uwtable
define i32 @stowplan_run_buffers(ptr noundef %0, ptr noundef readonly %1, ptr noundef readonly %2) local_unnamed_addr #0 {
  %4 = load i64, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 6), align 8, !tbaa !50
  %5 = icmp eq ptr %1, null
  %6 = tail call i64 @llvm.smax.i64(i64 %4, i64 0)
  br label %7

7:                                                ; preds = %15, %3
  %8 = phi i64 [ 0, %3 ], [ %19, %15 ]
  %9 = icmp eq i64 %8, %6
  br i1 %9, label %10, label %14

10:                                               ; preds = %7
  %11 = load i64, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 7), align 8, !tbaa !51
  %12 = icmp eq ptr %2, null
  %13 = tail call i64 @llvm.smax.i64(i64 %11, i64 0)
  br label %20

14:                                               ; preds = %7
  br i1 %5, label %74, label %15

15:                                               ; preds = %14
  %16 = getelementptr inbounds ptr, ptr %1, i64 %8
  %17 = load ptr, ptr %16, align 8, !tbaa !19
  %18 = icmp eq ptr %17, null
  %19 = add nuw i64 %8, 1
  br i1 %18, label %74, label %7, !llvm.loop !52

20:                                               ; preds = %24, %10
  %21 = phi i64 [ %28, %24 ], [ 0, %10 ]
  %22 = icmp eq i64 %21, %13
  br i1 %22, label %29, label %23

23:                                               ; preds = %20
  br i1 %12, label %74, label %24

24:                                               ; preds = %23
  %25 = getelementptr inbounds ptr, ptr %2, i64 %21
  %26 = load ptr, ptr %25, align 8, !tbaa !19
  %27 = icmp eq ptr %26, null
  %28 = add nuw i64 %21, 1
  br i1 %27, label %74, label %20, !llvm.loop !53

29:                                               ; preds = %20
  %30 = tail call fastcc i32 @begin(ptr noundef %0) #17
  %31 = icmp eq i32 %30, 0
  br i1 %31, label %32, label %74

32:                                               ; preds = %29
  %33 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 15), align 8
  %34 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 13), align 8
  br label %35

35:                                               ; preds = %32, %43
  %36 = phi i64 [ %55, %43 ], [ 0, %32 ]
  %37 = icmp eq i64 %36, %6
  br i1 %37, label %38, label %43

38:                                               ; preds = %35
  %39 = tail call fastcc i32 @run(ptr noundef %0) #17
  %40 = freeze i32 %39
  %41 = icmp eq i32 %40, 0
  %42 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 16), align 8
  br i1 %41, label %56, label %59

43:                                               ; preds = %35
  %44 = getelementptr inbounds %struct.place, ptr %33, i64 %36
  %45 = load i64, ptr %44, align 8
  %46 = getelementptr inbounds [2 x i64], ptr %44, i64 0, i64 1
  %47 = load i64, ptr %46, align 8
  %48 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 12, i64 %45
  %49 = load ptr, ptr %48, align 8, !tbaa !19
  %50 = getelementptr inbounds i8, ptr %49, i64 %47
  %51 = getelementptr inbounds ptr, ptr %1, i64 %36
  %52 = load ptr, ptr %51, align 8, !tbaa !19
  %53 = getelementptr inbounds %struct.stowplan_tensor, ptr %34, i64 %36, i32 4
  %54 = load i64, ptr %53, align 8, !tbaa !54
  tail call void @llvm.memcpy.p0.p0.i64(ptr align 1 %50, ptr align 1 %52, i64 %54, i1 false)
  %55 = add nuw i64 %36, 1
  br label %35, !llvm.loop !56

56:                                               ; preds = %38, %61
  %57 = phi i64 [ %73, %61 ], [ 0, %38 ]
  %58 = icmp eq i64 %57, %13
  br i1 %58, label %59, label %61

59:                                               ; preds = %56, %38
  %60 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 4
  store atomic i32 0, ptr %60 release, align 8
  br label %74

61:                                               ; preds = %56
  %62 = getelementptr inbounds ptr, ptr %2, i64 %57
  %63 = load ptr, ptr %62, align 8, !tbaa !19
  %64 = getelementptr inbounds %struct.place, ptr %42, i64 %57
  %65 = load i64, ptr %64, align 8
  %66 = getelementptr inbounds [2 x i64], ptr %64, i64 0, i64 1
  %67 = load i64, ptr %66, align 8
  %68 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 12, i64 %65
  %69 = load ptr, ptr %68, align 8, !tbaa !19
  %70 = getelementptr inbounds i8, ptr %69, i64 %67
  %71 = trunc i64 %57 to i32
  %72 = tail call i64 @stowplan_output_bytes(ptr noundef %0, i32 noundef %71) #17
  tail call void @llvm.memcpy.p0.p0.i64(ptr align 1 %63, ptr align 1 %70, i64 %72, i1 false)
  %73 = add nuw i64 %57, 1
  br label %56, !llvm.loop !57

74:                                               ; preds = %15, %14, %24, %23, %59, %29
  %75 = phi i32 [ %40, %59 ], [ %30, %29 ], [ 6, %23 ], [ 6, %24 ], [ 6, %14 ], [ 6, %15 ]
  ret i32 %75
}

; Function Attrs: mustprogress nocallback nofree nounwind willreturn memory(argmem: readwrite)
declare void @llvm.memcpy.p0.p0.i64(ptr noalias nocapture writeonly, ptr noalias nocapture readonly, i64, i1 immarg) #7

; Function Attrs: minsize nofree norecurse nosync nounwind optsize memory(read, inaccessiblemem: none) uwtable
define i64 @stowplan_output_bytes(ptr noundef readonly %0, i32 noundef %1) local_unnamed_addr #8 {
  %3 = tail call ptr @stowplan_output_shape(ptr noundef %0, i32 noundef %1) #17
  %4 = icmp eq ptr %3, null
  br i1 %4, label %37, label %5

5:                                                ; preds = %2
  %6 = icmp slt i32 %1, 0
  br i1 %6, label %14, label %7

7:                                                ; preds = %5
  %8 = zext i32 %1 to i64
  %9 = load i64, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 7), align 8, !tbaa !51
  %10 = icmp sgt i64 %9, %8
  br i1 %10, label %11, label %14

11:                                               ; preds = %7
  %12 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 14), align 8, !tbaa !58
  %13 = getelementptr inbounds %struct.stowplan_tensor, ptr %12, i64 %8
  br label %14

14:                                               ; preds = %5, %7, %11
  %15 = phi ptr [ %13, %11 ], [ null, %7 ], [ null, %5 ]
  %16 = getelementptr inbounds %struct.stowplan_tensor, ptr %15, i64 0, i32 4
  %17 = load i64, ptr %16, align 8, !tbaa !54
  %18 = getelementptr inbounds %struct.stowplan_tensor, ptr %15, i64 0, i32 2
  %19 = load i32, ptr %18, align 8, !tbaa !59
  %20 = getelementptr inbounds %struct.stowplan_tensor, ptr %15, i64 0, i32 1
  %21 = sext i32 %19 to i64
  br label %22

22:                                               ; preds = %28, %14
  %23 = phi i64 [ %36, %28 ], [ 0, %14 ]
  %24 = phi i64 [ %35, %28 ], [ %17, %14 ]
  %25 = icmp slt i64 %23, %21
  %26 = icmp ne i64 %24, 0
  %27 = select i1 %25, i1 %26, i1 false
  br i1 %27, label %28, label %37

28:                                               ; preds = %22
  %29 = load ptr, ptr %20, align 8, !tbaa !60
  %30 = getelementptr inbounds i64, ptr %29, i64 %23
  %31 = load i64, ptr %30, align 8, !tbaa !16
  %32 = udiv i64 %24, %31
  %33 = getelementptr inbounds i64, ptr %3, i64 %23
  %34 = load i64, ptr %33, align 8, !tbaa !16
  %35 = mul i64 %34, %32
  %36 = add nuw nsw i64 %23, 1
  br label %22, !llvm.loop !61

37:                                               ; preds = %22, %2
  %38 = phi i64 [ 0, %2 ], [ %24, %22 ]
  ret i64 %38
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(none) uwtable
define ptr @stowplan_metadata() local_unnamed_addr #9 {
  %1 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 20), align 8, !tbaa !62
  ret ptr %1
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(none) uwtable
define i32 @stowplan_input_count() local_unnamed_addr #9 {
  %1 = load i64, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 6), align 8, !tbaa !50
  %2 = trunc i64 %1 to i32
  ret i32 %2
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(none) uwtable
define i32 @stowplan_output_count() local_unnamed_addr #9 {
  %1 = load i64, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 7), align 8, !tbaa !51
  %2 = trunc i64 %1 to i32
  ret i32 %2
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(none) uwtable
define ptr @stowplan_input(i32 noundef %0) local_unnamed_addr #9 {
  %2 = icmp slt i32 %0, 0
  br i1 %2, label %10, label %3

3:                                                ; preds = %1
  %4 = zext i32 %0 to i64
  %5 = load i64, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 6), align 8, !tbaa !50
  %6 = icmp sgt i64 %5, %4
  br i1 %6, label %7, label %10

7:                                                ; preds = %3
  %8 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 13), align 8, !tbaa !63
  %9 = getelementptr inbounds %struct.stowplan_tensor, ptr %8, i64 %4
  br label %10

10:                                               ; preds = %1, %3, %7
  %11 = phi ptr [ %9, %7 ], [ null, %3 ], [ null, %1 ]
  ret ptr %11
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(none) uwtable
define ptr @stowplan_output(i32 noundef %0) local_unnamed_addr #9 {
  %2 = icmp slt i32 %0, 0
  br i1 %2, label %10, label %3

3:                                                ; preds = %1
  %4 = zext i32 %0 to i64
  %5 = load i64, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 7), align 8, !tbaa !51
  %6 = icmp sgt i64 %5, %4
  br i1 %6, label %7, label %10

7:                                                ; preds = %3
  %8 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 14), align 8, !tbaa !58
  %9 = getelementptr inbounds %struct.stowplan_tensor, ptr %8, i64 %4
  br label %10

10:                                               ; preds = %1, %3, %7
  %11 = phi ptr [ %9, %7 ], [ null, %3 ], [ null, %1 ]
  ret ptr %11
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(read, inaccessiblemem: none) uwtable
define ptr @stowplan_input_memory(ptr noundef readonly %0, i32 noundef %1) local_unnamed_addr #10 {
  %3 = icmp eq ptr %0, null
  %4 = icmp slt i32 %1, 0
  %5 = or i1 %3, %4
  br i1 %5, label %22, label %6

6:                                                ; preds = %2
  %7 = zext i32 %1 to i64
  %8 = load i64, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 6), align 8, !tbaa !50
  %9 = icmp sle i64 %8, %7
  %10 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 13), align 8
  %11 = icmp eq ptr %10, null
  %12 = select i1 %9, i1 true, i1 %11
  br i1 %12, label %22, label %13

13:                                               ; preds = %6
  %14 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 15), align 8, !tbaa !64
  %15 = getelementptr inbounds %struct.place, ptr %14, i64 %7
  %16 = load i64, ptr %15, align 8
  %17 = getelementptr inbounds [2 x i64], ptr %15, i64 0, i64 1
  %18 = load i64, ptr %17, align 8
  %19 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 12, i64 %16
  %20 = load ptr, ptr %19, align 8, !tbaa !19
  %21 = getelementptr inbounds i8, ptr %20, i64 %18
  br label %22

22:                                               ; preds = %6, %2, %13
  %23 = phi ptr [ %21, %13 ], [ null, %2 ], [ null, %6 ]
  ret ptr %23
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(read, inaccessiblemem: none) uwtable
define ptr @stowplan_output_memory(ptr noundef readonly %0, i32 noundef %1) local_unnamed_addr #10 {
  %3 = icmp eq ptr %0, null
  %4 = icmp slt i32 %1, 0
  %5 = or i1 %3, %4
  br i1 %5, label %22, label %6

6:                                                ; preds = %2
  %7 = zext i32 %1 to i64
  %8 = load i64, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 7), align 8, !tbaa !51
  %9 = icmp sle i64 %8, %7
  %10 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 14), align 8
  %11 = icmp eq ptr %10, null
  %12 = select i1 %9, i1 true, i1 %11
  br i1 %12, label %22, label %13

13:                                               ; preds = %6
  %14 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 16), align 8, !tbaa !65
  %15 = getelementptr inbounds %struct.place, ptr %14, i64 %7
  %16 = load i64, ptr %15, align 8
  %17 = getelementptr inbounds [2 x i64], ptr %15, i64 0, i64 1
  %18 = load i64, ptr %17, align 8
  %19 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 12, i64 %16
  %20 = load ptr, ptr %19, align 8, !tbaa !19
  %21 = getelementptr inbounds i8, ptr %20, i64 %18
  br label %22

22:                                               ; preds = %6, %2, %13
  %23 = phi ptr [ %21, %13 ], [ null, %2 ], [ null, %6 ]
  ret ptr %23
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(read, inaccessiblemem: none) uwtable
define ptr @stowplan_output_shape(ptr noundef readonly %0, i32 noundef %1) local_unnamed_addr #10 {
  %3 = icmp slt i32 %1, 0
  br i1 %3, label %27, label %4

4:                                                ; preds = %2
  %5 = zext i32 %1 to i64
  %6 = load i64, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 7), align 8, !tbaa !51
  %7 = icmp sgt i64 %6, %5
  br i1 %7, label %8, label %27

8:                                                ; preds = %4
  %9 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 14), align 8, !tbaa !58
  %10 = icmp ne ptr %0, null
  %11 = icmp ne ptr %9, null
  %12 = select i1 %10, i1 %11, i1 false
  br i1 %12, label %13, label %27

13:                                               ; preds = %8
  %14 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 17), align 8, !tbaa !66
  %15 = getelementptr inbounds %struct.place, ptr %14, i64 %5
  %16 = load i64, ptr %15, align 8, !tbaa.struct !67
  %17 = icmp eq i64 %16, 0
  br i1 %17, label %18, label %21

18:                                               ; preds = %13
  %19 = getelementptr inbounds %struct.stowplan_tensor, ptr %9, i64 %5, i32 1
  %20 = load ptr, ptr %19, align 8, !tbaa !60
  br label %27

21:                                               ; preds = %13
  %22 = getelementptr inbounds i8, ptr %15, i64 8
  %23 = load i64, ptr %22, align 8, !tbaa.struct !68
  %24 = getelementptr inbounds %struct.stowplan, ptr %0, i64 0, i32 12, i64 %16
  %25 = load ptr, ptr %24, align 8, !tbaa !19
  %26 = getelementptr inbounds i8, ptr %25, i64 %23
  br label %27

27:                                               ; preds = %2, %4, %18, %21, %8
  %28 = phi ptr [ null, %8 ], [ %20, %18 ], [ %26, %21 ], [ null, %4 ], [ null, %2 ]
  ret ptr %28
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(none) uwtable
define nonnull ptr @stowplan_message(i32 noundef %0) local_unnamed_addr #9 {
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
define ptr @RegisterCustomOps(ptr noundef %0, ptr nocapture noundef readonly %1) local_unnamed_addr #0 {
  %3 = alloca [512 x i8], align 1
  %4 = alloca i32, align 4
  %5 = alloca i32, align 4
  %6 = alloca i32, align 4
  %7 = load ptr, ptr %1, align 8, !tbaa !69
  %8 = tail call ptr %7(i32 noundef 16) #16
  %9 = icmp eq ptr %8, null
  br i1 %9, label %10, label %19

10:                                               ; preds = %2
  call void @llvm.lifetime.start.p0(i64 512, ptr nonnull %3) #20
  %11 = getelementptr inbounds %struct.ort_api_base, ptr %1, i64 0, i32 1
  %12 = load ptr, ptr %11, align 8, !tbaa !71
  %13 = tail call ptr %12() #16
  %14 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %3, i64 noundef 512, ptr noundef nonnull @.str.9, i32 noundef 16, ptr noundef %13) #16
  %15 = load ptr, ptr %1, align 8, !tbaa !69
  %16 = tail call ptr %15(i32 noundef 1) #16
  %17 = load ptr, ptr %16, align 8, !tbaa !72
  %18 = call ptr %17(i32 noundef 1, ptr noundef nonnull %3) #16
  call void @llvm.lifetime.end.p0(i64 512, ptr nonnull %3) #20
  br label %108

19:                                               ; preds = %2
  call void @llvm.lifetime.start.p0(i64 4, ptr nonnull %4) #20
  store i32 0, ptr %4, align 4, !tbaa !21
  call void @llvm.lifetime.start.p0(i64 4, ptr nonnull %5) #20
  store i32 1, ptr %5, align 4, !tbaa !21
  call void @llvm.lifetime.start.p0(i64 4, ptr nonnull %6) #20
  store i32 1, ptr %6, align 4, !tbaa !21
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
  %29 = load i32, ptr %5, align 4, !tbaa !21
  %30 = icmp ne i32 %29, 0
  %31 = zext i1 %30 to i32
  %32 = load i32, ptr %6, align 4, !tbaa !21
  %33 = icmp eq i32 %32, 0
  %34 = select i1 %33, i32 2, i32 0
  %35 = or i32 %34, %31
  %36 = tail call i32 @pthread_mutex_lock(ptr noundef nonnull @operators_lock) #16
  %37 = load i32, ptr %4, align 4
  br label %38

38:                                               ; preds = %54, %28
  %39 = phi ptr [ @operators, %28 ], [ %55, %54 ]
  %40 = load ptr, ptr %39, align 8, !tbaa !19
  %41 = icmp eq ptr %40, null
  br i1 %41, label %56, label %42

42:                                               ; preds = %38
  %43 = getelementptr inbounds %struct.operator, ptr %40, i64 0, i32 1
  %44 = load ptr, ptr %43, align 8, !tbaa !74
  %45 = icmp eq ptr %44, %8
  br i1 %45, label %46, label %54

46:                                               ; preds = %42
  %47 = getelementptr inbounds %struct.operator, ptr %40, i64 0, i32 2
  %48 = load i32, ptr %47, align 8, !tbaa !77
  %49 = icmp eq i32 %48, %37
  br i1 %49, label %50, label %54

50:                                               ; preds = %46
  %51 = getelementptr inbounds %struct.operator, ptr %40, i64 0, i32 3
  %52 = load i32, ptr %51, align 4, !tbaa !78
  %53 = icmp eq i32 %52, %35
  br i1 %53, label %95, label %54

54:                                               ; preds = %46, %42, %50
  %55 = getelementptr inbounds %struct.operator, ptr %40, i64 0, i32 5
  br label %38, !llvm.loop !79

56:                                               ; preds = %38
  %57 = tail call noalias dereferenceable_or_null(184) ptr @calloc(i64 noundef 1, i64 noundef 184) #18
  %58 = icmp eq ptr %57, null
  br i1 %58, label %59, label %62

59:                                               ; preds = %56
  %60 = load ptr, ptr %8, align 8, !tbaa !72
  %61 = tail call ptr %60(i32 noundef 1, ptr noundef nonnull @.str.1) #16
  br label %95

62:                                               ; preds = %56
  store i32 16, ptr %57, align 8, !tbaa.struct !80
  %63 = getelementptr inbounds i8, ptr %57, i64 16
  store ptr @operator_name, ptr %63, align 8, !tbaa.struct !81
  %64 = getelementptr inbounds i8, ptr %57, i64 24
  store ptr @operator_provider, ptr %64, align 8, !tbaa.struct !82
  %65 = getelementptr inbounds i8, ptr %57, i64 32
  store ptr @operator_input, ptr %65, align 8, !tbaa.struct !83
  %66 = getelementptr inbounds i8, ptr %57, i64 40
  store ptr @operator_inputs, ptr %66, align 8, !tbaa.struct !84
  %67 = getelementptr inbounds i8, ptr %57, i64 48
  store ptr @operator_output, ptr %67, align 8, !tbaa.struct !85
  %68 = getelementptr inbounds i8, ptr %57, i64 56
  store ptr @operator_outputs, ptr %68, align 8, !tbaa.struct !86
  %69 = getelementptr inbounds i8, ptr %57, i64 72
  store ptr @destroy_kernel, ptr %69, align 8, !tbaa.struct !87
  %70 = getelementptr inbounds i8, ptr %57, i64 80
  store ptr @operator_zero, ptr %70, align 8, !tbaa.struct !88
  %71 = getelementptr inbounds i8, ptr %57, i64 88
  store ptr @operator_zero, ptr %71, align 8, !tbaa.struct !89
  %72 = getelementptr inbounds i8, ptr %57, i64 96
  store ptr @operator_zero, ptr %72, align 8, !tbaa.struct !90
  %73 = getelementptr inbounds i8, ptr %57, i64 136
  store ptr @create_kernel, ptr %73, align 8, !tbaa.struct !91
  %74 = getelementptr inbounds i8, ptr %57, i64 144
  store ptr @compute_kernel, ptr %74, align 8, !tbaa.struct !92
  %75 = getelementptr inbounds %struct.operator, ptr %57, i64 0, i32 1
  store ptr %8, ptr %75, align 8, !tbaa !74
  %76 = getelementptr inbounds %struct.operator, ptr %57, i64 0, i32 2
  store i32 %37, ptr %76, align 8, !tbaa !77
  %77 = getelementptr inbounds %struct.operator, ptr %57, i64 0, i32 3
  store i32 %35, ptr %77, align 4, !tbaa !78
  %78 = getelementptr inbounds %struct.ort_api, ptr %8, i64 0, i32 2
  %79 = load ptr, ptr %78, align 8, !tbaa !93
  %80 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 21), align 8, !tbaa !94
  %81 = getelementptr inbounds %struct.operator, ptr %57, i64 0, i32 4
  %82 = tail call ptr %79(ptr noundef %80, ptr noundef nonnull %81) #16
  %83 = icmp eq ptr %82, null
  br i1 %83, label %84, label %90

84:                                               ; preds = %62
  %85 = getelementptr inbounds %struct.ort_api, ptr %8, i64 0, i32 3
  %86 = load ptr, ptr %85, align 8, !tbaa !95
  %87 = load ptr, ptr %81, align 8, !tbaa !96
  %88 = tail call ptr %86(ptr noundef %87, ptr noundef nonnull %57) #16
  %89 = icmp eq ptr %88, null
  br i1 %89, label %92, label %90

90:                                               ; preds = %84, %62
  %91 = phi ptr [ %88, %84 ], [ %82, %62 ]
  tail call void @free(ptr noundef nonnull %57) #16
  br label %95

92:                                               ; preds = %84
  %93 = load ptr, ptr @operators, align 8, !tbaa !19
  %94 = getelementptr inbounds %struct.operator, ptr %57, i64 0, i32 5
  store ptr %93, ptr %94, align 8, !tbaa !97
  store ptr %57, ptr @operators, align 8, !tbaa !19
  br label %95

95:                                               ; preds = %50, %92, %90, %59
  %96 = phi ptr [ null, %59 ], [ %57, %92 ], [ null, %90 ], [ %40, %50 ]
  %97 = phi ptr [ %61, %59 ], [ null, %92 ], [ %91, %90 ], [ null, %50 ]
  %98 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull @operators_lock) #16
  %99 = icmp eq ptr %97, null
  br i1 %99, label %100, label %106

100:                                              ; preds = %95
  %101 = getelementptr inbounds %struct.ort_api, ptr %8, i64 0, i32 4
  %102 = load ptr, ptr %101, align 8, !tbaa !98
  %103 = getelementptr inbounds %struct.operator, ptr %96, i64 0, i32 4
  %104 = load ptr, ptr %103, align 8, !tbaa !96
  %105 = tail call ptr %102(ptr noundef %0, ptr noundef %104) #16
  br label %106

106:                                              ; preds = %19, %22, %100, %95, %25
  %107 = phi ptr [ %26, %25 ], [ %105, %100 ], [ %97, %95 ], [ %23, %22 ], [ %20, %19 ]
  call void @llvm.lifetime.end.p0(i64 4, ptr nonnull %6) #20
  call void @llvm.lifetime.end.p0(i64 4, ptr nonnull %5) #20
  call void @llvm.lifetime.end.p0(i64 4, ptr nonnull %4) #20
  br label %108

108:                                              ; preds = %106, %10
  %109 = phi ptr [ %107, %106 ], [ %18, %10 ]
  ret ptr %109
}

; Function Attrs: minsize nofree nounwind optsize
declare noundef i32 @snprintf(ptr noalias nocapture noundef writeonly, i64 noundef, ptr nocapture noundef readonly, ...) local_unnamed_addr #11

; Function Attrs: minsize nounwind optsize uwtable
define internal fastcc ptr @read_option(ptr nocapture noundef readonly %0, ptr noundef %1, ptr noundef %2, i32 noundef %3, ptr nocapture noundef writeonly %4) unnamed_addr #0 {
  %6 = alloca i32, align 4
  %7 = alloca [8 x i8], align 8
  %8 = alloca [512 x i8], align 1
  %9 = alloca i64, align 8
  call void @llvm.lifetime.start.p0(i64 4, ptr nonnull %6) #20
  store i32 0, ptr %6, align 4, !tbaa !21
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %7) #20
  store i64 0, ptr %7, align 8
  call void @llvm.lifetime.start.p0(i64 512, ptr nonnull %8) #20
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %9) #20
  store i64 8, ptr %9, align 8, !tbaa !16
  %10 = getelementptr inbounds %struct.ort_api, ptr %0, i64 0, i32 19
  %11 = load ptr, ptr %10, align 8, !tbaa !99
  %12 = call ptr %11(ptr noundef %1, ptr noundef %2, ptr noundef nonnull %6) #16
  %13 = icmp eq ptr %12, null
  %14 = load i32, ptr %6, align 4
  %15 = icmp ne i32 %14, 0
  %16 = select i1 %13, i1 %15, i1 false
  br i1 %16, label %17, label %45

17:                                               ; preds = %5
  %18 = getelementptr inbounds %struct.ort_api, ptr %0, i64 0, i32 20
  %19 = load ptr, ptr %18, align 8, !tbaa !100
  %20 = call ptr %19(ptr noundef %1, ptr noundef %2, ptr noundef nonnull %7, ptr noundef nonnull %9) #16
  %21 = icmp eq ptr %20, null
  br i1 %21, label %22, label %45

22:                                               ; preds = %17, %28
  %23 = phi i32 [ %32, %28 ], [ 0, %17 ]
  %24 = phi ptr [ %33, %28 ], [ %7, %17 ]
  %25 = load i8, ptr %24, align 1, !tbaa !47
  %26 = add i8 %25, -48
  %27 = icmp ult i8 %26, 10
  br i1 %27, label %28, label %34

28:                                               ; preds = %22
  %29 = zext i8 %25 to i32
  %30 = mul nsw i32 %23, 10
  %31 = add i32 %30, -48
  %32 = add i32 %31, %29
  %33 = getelementptr inbounds i8, ptr %24, i64 1
  br label %22, !llvm.loop !101

34:                                               ; preds = %22
  %35 = icmp eq ptr %24, %7
  br i1 %35, label %41, label %36

36:                                               ; preds = %34
  %37 = icmp ne i8 %25, 0
  %38 = icmp sgt i32 %23, %3
  %39 = select i1 %37, i1 true, i1 %38
  br i1 %39, label %41, label %40

40:                                               ; preds = %36
  store i32 %23, ptr %4, align 4, !tbaa !21
  br label %45

41:                                               ; preds = %36, %34
  %42 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %8, i64 noundef 512, ptr noundef nonnull @.str.13, ptr noundef %2, i32 noundef %3, ptr noundef nonnull %7) #16
  %43 = load ptr, ptr %0, align 8, !tbaa !72
  %44 = call ptr %43(i32 noundef 2, ptr noundef nonnull %8) #16
  br label %45

45:                                               ; preds = %40, %41, %17, %5
  %46 = phi ptr [ %12, %5 ], [ %20, %17 ], [ %44, %41 ], [ null, %40 ]
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %9) #20
  call void @llvm.lifetime.end.p0(i64 512, ptr nonnull %8) #20
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %7) #20
  call void @llvm.lifetime.end.p0(i64 4, ptr nonnull %6) #20
  ret ptr %46
}

; Function Attrs: minsize nounwind optsize
declare i32 @pthread_mutex_lock(ptr noundef) local_unnamed_addr #1

; Function Attrs: minsize nounwind optsize
declare i32 @pthread_mutex_unlock(ptr noundef) local_unnamed_addr #1

; Function Attrs: minsize nounwind optsize
declare i64 @getauxval(i64 noundef) local_unnamed_addr #1

; Function Attrs: minsize nounwind optsize
declare ptr @mmap(ptr noundef, i64 noundef, i32 noundef, i32 noundef, i32 noundef, i64 noundef) local_unnamed_addr #1

; Function Attrs: minsize nounwind optsize
declare i32 @madvise(ptr noundef, i64 noundef, i32 noundef) local_unnamed_addr #1

; Function Attrs: minsize nounwind optsize
declare i32 @mprotect(ptr noundef, i64 noundef, i32 noundef) local_unnamed_addr #1

; Function Attrs: minsize nounwind optsize
declare i32 @pthread_mutex_init(ptr noundef, ptr noundef) local_unnamed_addr #1

; Function Attrs: minsize nounwind optsize
declare i32 @pthread_cond_init(ptr noundef, ptr noundef) local_unnamed_addr #1

; Function Attrs: minsize mustprogress nofree nounwind optsize willreturn allockind("alloc,uninitialized") allocsize(0) memory(inaccessiblemem: readwrite)
declare noalias noundef ptr @malloc(i64 noundef) local_unnamed_addr #12

; Function Attrs: minsize nounwind optsize
declare i32 @pthread_create(ptr noundef, ptr noundef, ptr noundef, ptr noundef) local_unnamed_addr #1

; Function Attrs: minsize nounwind optsize uwtable
define internal noalias ptr @serve(ptr nocapture noundef %0) #0 {
  %2 = load ptr, ptr %0, align 8, !tbaa !42
  %3 = getelementptr inbounds %struct.start, ptr %0, i64 0, i32 1
  %4 = load i32, ptr %3, align 8, !tbaa !44
  tail call void @free(ptr noundef %0) #16
  %5 = getelementptr inbounds %struct.stowplan, ptr %2, i64 0, i32 7
  %6 = load ptr, ptr %5, align 8, !tbaa !10
  %7 = sext i32 %4 to i64
  %8 = load i32, ptr %2, align 8, !tbaa !24
  %9 = sext i32 %8 to i64
  tail call void @stowplan_help(ptr noundef %6, i64 noundef %7, i64 noundef %9) #16
  ret ptr null
}

; Function Attrs: minsize optsize
declare void @stowplan_help(ptr noundef, i64 noundef, i64 noundef) local_unnamed_addr #2

; Function Attrs: minsize optsize
declare void @stowplan_lead(ptr noundef) local_unnamed_addr #2

; Function Attrs: minsize nounwind optsize
declare i32 @sched_getcpu() local_unnamed_addr #1

; Function Attrs: minsize nounwind optsize
declare i32 @pthread_setaffinity_np(i64 noundef, i64 noundef, ptr noundef) local_unnamed_addr #1

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(none) uwtable
define internal nonnull ptr @operator_name(ptr nocapture readnone %0) #9 {
  ret ptr @.str.14
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(none) uwtable
define internal noalias ptr @operator_provider(ptr nocapture readnone %0) #9 {
  ret ptr null
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(read, inaccessiblemem: none) uwtable
define internal i32 @operator_input(ptr nocapture readnone %0, i64 noundef %1) #10 {
  %3 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 13), align 8, !tbaa !63
  %4 = getelementptr inbounds %struct.stowplan_tensor, ptr %3, i64 %1, i32 3
  %5 = load i32, ptr %4, align 4, !tbaa !102
  ret i32 %5
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(none) uwtable
define internal i64 @operator_inputs(ptr nocapture readnone %0) #9 {
  %2 = load i64, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 6), align 8, !tbaa !50
  ret i64 %2
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(read, inaccessiblemem: none) uwtable
define internal i32 @operator_output(ptr nocapture readnone %0, i64 noundef %1) #10 {
  %3 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 14), align 8, !tbaa !58
  %4 = getelementptr inbounds %struct.stowplan_tensor, ptr %3, i64 %1, i32 3
  %5 = load i32, ptr %4, align 4, !tbaa !102
  ret i32 %5
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(none) uwtable
define internal i64 @operator_outputs(ptr nocapture readnone %0) #9 {
  %2 = load i64, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 7), align 8, !tbaa !51
  ret i64 %2
}

; Function Attrs: minsize nounwind optsize uwtable
define internal void @destroy_kernel(ptr noundef %0) #0 {
  %2 = icmp eq ptr %0, null
  br i1 %2, label %6, label %3

3:                                                ; preds = %1
  %4 = getelementptr inbounds %struct.kernel, ptr %0, i64 0, i32 1
  %5 = load ptr, ptr %4, align 8, !tbaa !103
  tail call void @stowplan_destroy(ptr noundef %5) #17
  tail call void @free(ptr noundef nonnull %0) #16
  br label %6

6:                                                ; preds = %1, %3
  ret void
}

; Function Attrs: minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(none) uwtable
define internal i32 @operator_zero(ptr nocapture readnone %0, i64 %1) #9 {
  ret i32 0
}

; Function Attrs: minsize nounwind optsize uwtable
define internal ptr @create_kernel(ptr nocapture noundef readonly %0, ptr noundef %1, ptr nocapture readnone %2, ptr nocapture noundef writeonly %3) #0 {
  %5 = tail call noalias dereferenceable_or_null(64) ptr @calloc(i64 noundef 1, i64 noundef 64) #18
  %6 = icmp eq ptr %5, null
  br i1 %6, label %15, label %7

7:                                                ; preds = %4
  %8 = getelementptr inbounds %struct.kernel, ptr %5, i64 0, i32 1
  %9 = getelementptr inbounds %struct.operator, ptr %0, i64 0, i32 2
  %10 = load i32, ptr %9, align 8, !tbaa !77
  %11 = getelementptr inbounds %struct.operator, ptr %0, i64 0, i32 3
  %12 = load i32, ptr %11, align 4, !tbaa !78
  %13 = tail call i32 @stowplan_create(ptr noundef nonnull %8, i32 noundef %10, i32 noundef %12) #17
  %14 = icmp eq i32 %13, 0
  br i1 %14, label %20, label %15

15:                                               ; preds = %4, %7
  %16 = phi i32 [ %13, %7 ], [ 1, %4 ]
  tail call void @free(ptr noundef %5) #16
  %17 = load ptr, ptr %1, align 8, !tbaa !72
  %18 = tail call ptr @stowplan_message(i32 noundef %16) #17
  %19 = tail call ptr %17(i32 noundef 1, ptr noundef nonnull %18) #16
  br label %23

20:                                               ; preds = %7
  store ptr %1, ptr %5, align 8, !tbaa !105
  %21 = getelementptr inbounds %struct.kernel, ptr %5, i64 0, i32 2
  %22 = tail call i32 @pthread_mutex_init(ptr noundef nonnull %21, ptr noundef null) #16
  store ptr %5, ptr %3, align 8, !tbaa !19
  br label %23

23:                                               ; preds = %20, %15
  %24 = phi ptr [ %19, %15 ], [ null, %20 ]
  ret ptr %24
}

; Function Attrs: minsize nounwind optsize uwtable
define internal ptr @compute_kernel(ptr noundef %0, ptr noundef %1) #0 {
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
  %15 = tail call i32 @pthread_mutex_lock(ptr noundef nonnull %14) #16
  %16 = load i64, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 6), align 8, !tbaa !50
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
  %29 = load ptr, ptr %0, align 8, !tbaa !105
  %30 = icmp sgt i64 %16, %22
  %31 = getelementptr inbounds %struct.stowplan_tensor, ptr %17, i64 %22
  %32 = select i1 %30, ptr %31, ptr null
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %11) #20
  store ptr null, ptr %11, align 8, !tbaa !19
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %12) #20
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %13) #20
  %33 = getelementptr inbounds %struct.ort_api, ptr %29, i64 0, i32 14
  %34 = load ptr, ptr %33, align 8, !tbaa !106
  %35 = call ptr %34(ptr noundef %1, i64 noundef %22, ptr noundef nonnull %11) #16
  %36 = icmp eq ptr %35, null
  br i1 %36, label %37, label %129

37:                                               ; preds = %28
  %38 = load ptr, ptr %11, align 8, !tbaa !19
  %39 = icmp eq ptr %38, null
  br i1 %39, label %40, label %43

40:                                               ; preds = %37
  %41 = load ptr, ptr %29, align 8, !tbaa !72
  %42 = call ptr %41(i32 noundef 2, ptr noundef nonnull @.str.15) #16
  br label %129

43:                                               ; preds = %37
  %44 = getelementptr inbounds %struct.ort_api, ptr %29, i64 0, i32 12
  %45 = load ptr, ptr %44, align 8, !tbaa !107
  %46 = call ptr %45(ptr noundef nonnull %38, ptr noundef nonnull %12) #16
  %47 = icmp eq ptr %46, null
  br i1 %47, label %48, label %129

48:                                               ; preds = %43
  %49 = load ptr, ptr %12, align 8, !tbaa !19
  call void @llvm.lifetime.start.p0(i64 512, ptr nonnull %5) #20
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %6) #20
  call void @llvm.lifetime.start.p0(i64 4, ptr nonnull %7) #20
  %50 = getelementptr inbounds %struct.ort_api, ptr %29, i64 0, i32 8
  %51 = load ptr, ptr %50, align 8, !tbaa !108
  %52 = call ptr %51(ptr noundef %49, ptr noundef nonnull %7) #16
  %53 = icmp eq ptr %52, null
  br i1 %53, label %54, label %108

54:                                               ; preds = %48
  %55 = getelementptr inbounds %struct.ort_api, ptr %29, i64 0, i32 9
  %56 = load ptr, ptr %55, align 8, !tbaa !109
  %57 = call ptr %56(ptr noundef %49, ptr noundef nonnull %6) #16
  %58 = icmp eq ptr %57, null
  br i1 %58, label %59, label %108

59:                                               ; preds = %54
  %60 = load i64, ptr %6, align 8, !tbaa !16
  %61 = call i64 @llvm.umin.i64(i64 %60, i64 64)
  %62 = getelementptr inbounds %struct.ort_api, ptr %29, i64 0, i32 10
  %63 = load ptr, ptr %62, align 8, !tbaa !110
  %64 = call ptr %63(ptr noundef %49, ptr noundef nonnull %5, i64 noundef %61) #16
  %65 = icmp eq ptr %64, null
  br i1 %65, label %66, label %108

66:                                               ; preds = %59
  %67 = load i32, ptr %7, align 4, !tbaa !21
  %68 = getelementptr inbounds %struct.stowplan_tensor, ptr %32, i64 0, i32 3
  %69 = load i32, ptr %68, align 4, !tbaa !102
  %70 = icmp eq i32 %67, %69
  br i1 %70, label %71, label %78

71:                                               ; preds = %66
  %72 = load i64, ptr %6, align 8, !tbaa !16
  %73 = getelementptr inbounds %struct.stowplan_tensor, ptr %32, i64 0, i32 2
  %74 = load i32, ptr %73, align 8, !tbaa !59
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
  %90 = load i64, ptr %89, align 8, !tbaa !16
  %91 = load ptr, ptr %80, align 8, !tbaa !60
  %92 = getelementptr inbounds i64, ptr %91, i64 %83
  %93 = load i64, ptr %92, align 8, !tbaa !16
  %94 = icmp eq i64 %90, %93
  %95 = zext i1 %94 to i32
  %96 = add nuw nsw i64 %83, 1
  br label %81, !llvm.loop !111

97:                                               ; preds = %87
  call void @llvm.lifetime.start.p0(i64 512, ptr nonnull %8) #20
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %9) #20
  call void @llvm.memset.p0.i64(ptr noundef nonnull align 1 dereferenceable(128) %9, i8 0, i64 128, i1 false)
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %10) #20
  call void @llvm.memset.p0.i64(ptr noundef nonnull align 1 dereferenceable(128) %10, i8 0, i64 128, i1 false)
  %98 = load ptr, ptr %80, align 8, !tbaa !60
  %99 = getelementptr inbounds %struct.stowplan_tensor, ptr %32, i64 0, i32 2
  %100 = load i32, ptr %99, align 8, !tbaa !59
  %101 = sext i32 %100 to i64
  call fastcc void @write_shape(ptr noundef nonnull %9, ptr noundef %98, i64 noundef %101) #17
  call fastcc void @write_shape(ptr noundef nonnull %10, ptr noundef nonnull %5, i64 noundef %61) #17
  %102 = load ptr, ptr %32, align 8, !tbaa !112
  %103 = load i32, ptr %68, align 4, !tbaa !102
  %104 = load i32, ptr %7, align 4, !tbaa !21
  %105 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %8, i64 noundef 512, ptr noundef nonnull @.str.16, ptr noundef %102, i32 noundef %103, ptr noundef nonnull %9, i32 noundef %104, ptr noundef nonnull %10) #16
  %106 = load ptr, ptr %29, align 8, !tbaa !72
  %107 = call ptr %106(i32 noundef 2, ptr noundef nonnull %8) #16
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %10) #20
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %9) #20
  call void @llvm.lifetime.end.p0(i64 512, ptr nonnull %8) #20
  br label %108

108:                                              ; preds = %97, %87, %59, %54, %48
  %109 = phi ptr [ %52, %48 ], [ %57, %54 ], [ %107, %97 ], [ %64, %59 ], [ null, %87 ]
  call void @llvm.lifetime.end.p0(i64 4, ptr nonnull %7) #20
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %6) #20
  call void @llvm.lifetime.end.p0(i64 512, ptr nonnull %5) #20
  %110 = getelementptr inbounds %struct.ort_api, ptr %29, i64 0, i32 17
  %111 = load ptr, ptr %110, align 8, !tbaa !113
  %112 = load ptr, ptr %12, align 8, !tbaa !19
  call void %111(ptr noundef %112) #16
  %113 = icmp eq ptr %109, null
  br i1 %113, label %114, label %129

114:                                              ; preds = %108
  %115 = getelementptr inbounds %struct.ort_api, ptr %29, i64 0, i32 6
  %116 = load ptr, ptr %115, align 8, !tbaa !114
  %117 = load ptr, ptr %11, align 8, !tbaa !19
  %118 = call ptr %116(ptr noundef %117, ptr noundef nonnull %13) #16
  %119 = icmp eq ptr %118, null
  br i1 %119, label %120, label %129

120:                                              ; preds = %114
  %121 = getelementptr inbounds %struct.stowplan_tensor, ptr %32, i64 0, i32 4
  %122 = load i64, ptr %121, align 8, !tbaa !54
  %123 = icmp eq i64 %122, 0
  br i1 %123, label %129, label %124

124:                                              ; preds = %120
  %125 = load ptr, ptr %18, align 8, !tbaa !103
  %126 = trunc i64 %22 to i32
  %127 = call ptr @stowplan_input_memory(ptr noundef %125, i32 noundef %126) #17
  %128 = load ptr, ptr %13, align 8, !tbaa !19
  call void @llvm.memcpy.p0.p0.i64(ptr align 1 %127, ptr align 1 %128, i64 %122, i1 false)
  br label %129

129:                                              ; preds = %28, %40, %43, %108, %114, %120, %124
  %130 = phi ptr [ %42, %40 ], [ %35, %28 ], [ %46, %43 ], [ %109, %108 ], [ %118, %114 ], [ null, %124 ], [ null, %120 ]
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %13) #20
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %12) #20
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %11) #20
  %131 = add nuw nsw i64 %22, 1
  br label %21, !llvm.loop !115

132:                                              ; preds = %27
  %133 = load ptr, ptr %18, align 8, !tbaa !103
  %134 = call i32 @stowplan_run(ptr noundef %133) #17
  %135 = icmp eq i32 %134, 0
  br i1 %135, label %141, label %136

136:                                              ; preds = %132
  %137 = load ptr, ptr %0, align 8, !tbaa !105
  %138 = load ptr, ptr %137, align 8, !tbaa !72
  %139 = call ptr @stowplan_message(i32 noundef %134) #17
  %140 = call ptr %138(i32 noundef 1, ptr noundef nonnull %139) #16
  br label %141

141:                                              ; preds = %132, %136, %27
  %142 = phi ptr [ %23, %27 ], [ %140, %136 ], [ null, %132 ]
  %143 = load i64, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 7), align 8, !tbaa !51
  %144 = load ptr, ptr getelementptr inbounds (%struct.program, ptr @stowplan_program, i64 0, i32 14), align 8
  %145 = shl i64 %143, 32
  %146 = ashr exact i64 %145, 32
  br label %147

147:                                              ; preds = %186, %141
  %148 = phi i64 [ %188, %186 ], [ 0, %141 ]
  %149 = phi ptr [ %187, %186 ], [ %142, %141 ]
  %150 = icmp slt i64 %148, %146
  %151 = icmp eq ptr %149, null
  %152 = select i1 %150, i1 %151, i1 false
  br i1 %152, label %155, label %153

153:                                              ; preds = %147
  %154 = call i32 @pthread_mutex_unlock(ptr noundef nonnull %14) #16
  ret ptr %149

155:                                              ; preds = %147
  %156 = icmp sgt i64 %143, %148
  %157 = getelementptr inbounds %struct.stowplan_tensor, ptr %144, i64 %148
  %158 = select i1 %156, ptr %157, ptr null
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %3) #20
  store ptr null, ptr %3, align 8, !tbaa !19
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %4) #20
  %159 = load ptr, ptr %18, align 8, !tbaa !103
  %160 = trunc i64 %148 to i32
  %161 = call ptr @stowplan_output_shape(ptr noundef %159, i32 noundef %160) #17
  %162 = call i64 @stowplan_output_bytes(ptr noundef %159, i32 noundef %160) #17
  %163 = load ptr, ptr %0, align 8, !tbaa !105
  %164 = getelementptr inbounds %struct.ort_api, ptr %163, i64 0, i32 15
  %165 = load ptr, ptr %164, align 8, !tbaa !116
  %166 = getelementptr inbounds %struct.stowplan_tensor, ptr %158, i64 0, i32 2
  %167 = load i32, ptr %166, align 8, !tbaa !59
  %168 = sext i32 %167 to i64
  %169 = call ptr %165(ptr noundef %1, i64 noundef %148, ptr noundef %161, i64 noundef %168, ptr noundef nonnull %3) #16
  %170 = icmp eq ptr %169, null
  %171 = load ptr, ptr %3, align 8
  %172 = icmp ne ptr %171, null
  %173 = select i1 %170, i1 %172, i1 false
  br i1 %173, label %174, label %186

174:                                              ; preds = %155
  %175 = load ptr, ptr %0, align 8, !tbaa !105
  %176 = getelementptr inbounds %struct.ort_api, ptr %175, i64 0, i32 6
  %177 = load ptr, ptr %176, align 8, !tbaa !114
  %178 = call ptr %177(ptr noundef nonnull %171, ptr noundef nonnull %4) #16
  %179 = icmp eq ptr %178, null
  br i1 %179, label %180, label %186

180:                                              ; preds = %174
  %181 = icmp eq i64 %162, 0
  br i1 %181, label %186, label %182

182:                                              ; preds = %180
  %183 = load ptr, ptr %4, align 8, !tbaa !19
  %184 = load ptr, ptr %18, align 8, !tbaa !103
  %185 = call ptr @stowplan_output_memory(ptr noundef %184, i32 noundef %160) #17
  call void @llvm.memcpy.p0.p0.i64(ptr align 1 %183, ptr align 1 %185, i64 %162, i1 false)
  br label %186

186:                                              ; preds = %155, %174, %180, %182
  %187 = phi ptr [ %169, %155 ], [ %178, %174 ], [ null, %182 ], [ null, %180 ]
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %4) #20
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %3) #20
  %188 = add nuw nsw i64 %148, 1
  br label %147, !llvm.loop !117
}

; Function Attrs: minsize nofree nounwind optsize uwtable
define internal fastcc void @write_shape(ptr nocapture noundef writeonly %0, ptr nocapture noundef readonly %1, i64 noundef %2) unnamed_addr #13 {
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
  %17 = load i64, ptr %16, align 8, !tbaa !16
  %18 = tail call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef %12, i64 noundef %13, ptr noundef nonnull %15, i64 noundef %17) #16
  %19 = sext i32 %18 to i64
  %20 = add nsw i64 %5, %19
  %21 = add nuw i64 %6, 1
  br label %4, !llvm.loop !118
}

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i64 @llvm.umin.i64(i64, i64) #14

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i64 @llvm.smax.i64(i64, i64) #14

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i32 @llvm.smax.i32(i32, i32) #14

; Function Attrs: nocallback nofree nosync nounwind willreturn memory(argmem: read)
declare ptr @llvm.load.relative.i64(ptr, i64) #15

attributes #0 = { minsize nounwind optsize uwtable "frame-pointer"="non-leaf" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="generic" "target-features"="+fp-armv8,+neon,+v8a,-fmv,-outline-atomics" }
attributes #1 = { minsize nounwind optsize "frame-pointer"="non-leaf" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="generic" "target-features"="+fp-armv8,+neon,+v8a,-fmv,-outline-atomics" }
attributes #2 = { minsize optsize "frame-pointer"="non-leaf" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="generic" "target-features"="+fp-armv8,+neon,+v8a,-fmv,-outline-atomics" }
attributes #3 = { mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite) }
attributes #4 = { minsize mustprogress nounwind optsize willreturn allockind("free") memory(argmem: readwrite, inaccessiblemem: readwrite) "alloc-family"="malloc" "frame-pointer"="non-leaf" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="generic" "target-features"="+fp-armv8,+neon,+v8a,-fmv,-outline-atomics" }
attributes #5 = { minsize mustprogress nofree nounwind optsize willreturn allockind("alloc,zeroed") allocsize(0,1) memory(inaccessiblemem: readwrite) "alloc-family"="malloc" "frame-pointer"="non-leaf" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="generic" "target-features"="+fp-armv8,+neon,+v8a,-fmv,-outline-atomics" }
attributes #6 = { mustprogress nocallback nofree nounwind willreturn memory(argmem: write) }
attributes #7 = { mustprogress nocallback nofree nounwind willreturn memory(argmem: readwrite) }
attributes #8 = { minsize nofree norecurse nosync nounwind optsize memory(read, inaccessiblemem: none) uwtable "frame-pointer"="non-leaf" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="generic" "target-features"="+fp-armv8,+neon,+v8a,-fmv,-outline-atomics" }
attributes #9 = { minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(none) uwtable "frame-pointer"="non-leaf" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="generic" "target-features"="+fp-armv8,+neon,+v8a,-fmv,-outline-atomics" }
attributes #10 = { minsize mustprogress nofree norecurse nosync nounwind optsize willreturn memory(read, inaccessiblemem: none) uwtable "frame-pointer"="non-leaf" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="generic" "target-features"="+fp-armv8,+neon,+v8a,-fmv,-outline-atomics" }
attributes #11 = { minsize nofree nounwind optsize "frame-pointer"="non-leaf" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="generic" "target-features"="+fp-armv8,+neon,+v8a,-fmv,-outline-atomics" }
attributes #12 = { minsize mustprogress nofree nounwind optsize willreturn allockind("alloc,uninitialized") allocsize(0) memory(inaccessiblemem: readwrite) "alloc-family"="malloc" "frame-pointer"="non-leaf" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="generic" "target-features"="+fp-armv8,+neon,+v8a,-fmv,-outline-atomics" }
attributes #13 = { minsize nofree nounwind optsize uwtable "frame-pointer"="non-leaf" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="generic" "target-features"="+fp-armv8,+neon,+v8a,-fmv,-outline-atomics" }
attributes #14 = { nocallback nofree nosync nounwind speculatable willreturn memory(none) }
attributes #15 = { nocallback nofree nosync nounwind willreturn memory(argmem: read) }
attributes #16 = { minsize nounwind optsize }
attributes #17 = { minsize optsize }
attributes #18 = { minsize nounwind optsize allocsize(0,1) }
attributes #19 = { minsize nounwind optsize allocsize(0) }
attributes #20 = { nounwind }

!llvm.module.flags = !{!0, !1, !2, !3}

!0 = !{i32 1, !"wchar_size", i32 4}
!1 = !{i32 8, !"PIC Level", i32 2}
!2 = !{i32 7, !"uwtable", i32 2}
!3 = !{i32 7, !"frame-pointer", i32 1}
!4 = !{!5, !6, i64 72}
!5 = !{!"program", !6, i64 0, !6, i64 8, !6, i64 16, !6, i64 24, !6, i64 32, !6, i64 40, !6, i64 48, !6, i64 56, !6, i64 64, !6, i64 72, !9, i64 80, !9, i64 88, !9, i64 96, !9, i64 104, !9, i64 112, !9, i64 120, !9, i64 128, !9, i64 136, !9, i64 144, !9, i64 152, !9, i64 160, !9, i64 168}
!6 = !{!"long", !7, i64 0}
!7 = !{!"omnipotent char", !8, i64 0}
!8 = !{!"Simple C/C++ TBAA"}
!9 = !{!"any pointer", !7, i64 0}
!10 = !{!11, !9, i64 32}
!11 = !{!"stowplan", !12, i64 0, !12, i64 4, !12, i64 8, !12, i64 12, !12, i64 16, !12, i64 20, !12, i64 24, !9, i64 32, !9, i64 40, !9, i64 48, !9, i64 56, !7, i64 64, !7, i64 120, !9, i64 152, !6, i64 160, !13, i64 168, !7, i64 296}
!12 = !{!"int", !7, i64 0}
!13 = !{!"", !7, i64 0}
!14 = !{!11, !12, i64 24}
!15 = !{!11, !12, i64 20}
!16 = !{!6, !6, i64 0}
!17 = distinct !{!17, !18}
!18 = !{!"llvm.loop.mustprogress"}
!19 = !{!9, !9, i64 0}
!20 = !{!11, !12, i64 4}
!21 = !{!12, !12, i64 0}
!22 = !{!11, !9, i64 152}
!23 = !{!11, !6, i64 160}
!24 = !{!11, !12, i64 0}
!25 = !{!11, !12, i64 12}
!26 = !{!5, !6, i64 32}
!27 = !{!5, !6, i64 40}
!28 = !{!5, !9, i64 152}
!29 = !{!5, !6, i64 24}
!30 = !{!11, !9, i64 40}
!31 = !{!11, !9, i64 48}
!32 = !{!11, !9, i64 56}
!33 = !{!34, !6, i64 8}
!34 = !{!"place", !6, i64 0, !6, i64 8}
!35 = !{!34, !6, i64 0}
!36 = distinct !{!36, !18}
!37 = distinct !{!37, !18}
!38 = !{!11, !12, i64 8}
!39 = distinct !{!39, !18}
!40 = distinct !{!40, !18}
!41 = distinct !{!41, !18}
!42 = !{!43, !9, i64 0}
!43 = !{!"start", !9, i64 0, !12, i64 8}
!44 = !{!43, !12, i64 8}
!45 = distinct !{!45, !18}
!46 = !{i64 0, i64 128, !47}
!47 = !{!7, !7, i64 0}
!48 = distinct !{!48, !18}
!49 = distinct !{!49, !18}
!50 = !{!5, !6, i64 48}
!51 = !{!5, !6, i64 56}
!52 = distinct !{!52, !18}
!53 = distinct !{!53, !18}
!54 = !{!55, !6, i64 24}
!55 = !{!"", !9, i64 0, !9, i64 8, !12, i64 16, !12, i64 20, !6, i64 24}
!56 = distinct !{!56, !18}
!57 = distinct !{!57, !18}
!58 = !{!5, !9, i64 112}
!59 = !{!55, !12, i64 16}
!60 = !{!55, !9, i64 8}
!61 = distinct !{!61, !18}
!62 = !{!5, !9, i64 160}
!63 = !{!5, !9, i64 104}
!64 = !{!5, !9, i64 120}
!65 = !{!5, !9, i64 128}
!66 = !{!5, !9, i64 136}
!67 = !{i64 0, i64 8, !16, i64 8, i64 8, !16}
!68 = !{i64 0, i64 8, !16}
!69 = !{!70, !9, i64 0}
!70 = !{!"ort_api_base", !9, i64 0, !9, i64 8}
!71 = !{!70, !9, i64 8}
!72 = !{!73, !9, i64 0}
!73 = !{!"ort_api", !9, i64 0, !7, i64 8, !9, i64 208, !9, i64 216, !9, i64 224, !7, i64 232, !9, i64 408, !7, i64 416, !9, i64 480, !9, i64 488, !9, i64 496, !7, i64 504, !9, i64 520, !7, i64 528, !9, i64 720, !9, i64 728, !7, i64 736, !9, i64 792, !7, i64 800, !9, i64 1896, !9, i64 1904}
!74 = !{!75, !9, i64 152}
!75 = !{!"operator", !76, i64 0, !9, i64 152, !12, i64 160, !12, i64 164, !9, i64 168, !9, i64 176}
!76 = !{!"ort_operator", !12, i64 0, !9, i64 8, !9, i64 16, !9, i64 24, !9, i64 32, !9, i64 40, !9, i64 48, !9, i64 56, !9, i64 64, !9, i64 72, !9, i64 80, !9, i64 88, !9, i64 96, !7, i64 104, !9, i64 136, !9, i64 144}
!77 = !{!75, !12, i64 160}
!78 = !{!75, !12, i64 164}
!79 = distinct !{!79, !18}
!80 = !{i64 0, i64 4, !21, i64 8, i64 8, !19, i64 16, i64 8, !19, i64 24, i64 8, !19, i64 32, i64 8, !19, i64 40, i64 8, !19, i64 48, i64 8, !19, i64 56, i64 8, !19, i64 64, i64 8, !19, i64 72, i64 8, !19, i64 80, i64 8, !19, i64 88, i64 8, !19, i64 96, i64 8, !19, i64 104, i64 32, !47, i64 136, i64 8, !19, i64 144, i64 8, !19}
!81 = !{i64 0, i64 8, !19, i64 8, i64 8, !19, i64 16, i64 8, !19, i64 24, i64 8, !19, i64 32, i64 8, !19, i64 40, i64 8, !19, i64 48, i64 8, !19, i64 56, i64 8, !19, i64 64, i64 8, !19, i64 72, i64 8, !19, i64 80, i64 8, !19, i64 88, i64 32, !47, i64 120, i64 8, !19, i64 128, i64 8, !19}
!82 = !{i64 0, i64 8, !19, i64 8, i64 8, !19, i64 16, i64 8, !19, i64 24, i64 8, !19, i64 32, i64 8, !19, i64 40, i64 8, !19, i64 48, i64 8, !19, i64 56, i64 8, !19, i64 64, i64 8, !19, i64 72, i64 8, !19, i64 80, i64 32, !47, i64 112, i64 8, !19, i64 120, i64 8, !19}
!83 = !{i64 0, i64 8, !19, i64 8, i64 8, !19, i64 16, i64 8, !19, i64 24, i64 8, !19, i64 32, i64 8, !19, i64 40, i64 8, !19, i64 48, i64 8, !19, i64 56, i64 8, !19, i64 64, i64 8, !19, i64 72, i64 32, !47, i64 104, i64 8, !19, i64 112, i64 8, !19}
!84 = !{i64 0, i64 8, !19, i64 8, i64 8, !19, i64 16, i64 8, !19, i64 24, i64 8, !19, i64 32, i64 8, !19, i64 40, i64 8, !19, i64 48, i64 8, !19, i64 56, i64 8, !19, i64 64, i64 32, !47, i64 96, i64 8, !19, i64 104, i64 8, !19}
!85 = !{i64 0, i64 8, !19, i64 8, i64 8, !19, i64 16, i64 8, !19, i64 24, i64 8, !19, i64 32, i64 8, !19, i64 40, i64 8, !19, i64 48, i64 8, !19, i64 56, i64 32, !47, i64 88, i64 8, !19, i64 96, i64 8, !19}
!86 = !{i64 0, i64 8, !19, i64 8, i64 8, !19, i64 16, i64 8, !19, i64 24, i64 8, !19, i64 32, i64 8, !19, i64 40, i64 8, !19, i64 48, i64 32, !47, i64 80, i64 8, !19, i64 88, i64 8, !19}
!87 = !{i64 0, i64 8, !19, i64 8, i64 8, !19, i64 16, i64 8, !19, i64 24, i64 8, !19, i64 32, i64 32, !47, i64 64, i64 8, !19, i64 72, i64 8, !19}
!88 = !{i64 0, i64 8, !19, i64 8, i64 8, !19, i64 16, i64 8, !19, i64 24, i64 32, !47, i64 56, i64 8, !19, i64 64, i64 8, !19}
!89 = !{i64 0, i64 8, !19, i64 8, i64 8, !19, i64 16, i64 32, !47, i64 48, i64 8, !19, i64 56, i64 8, !19}
!90 = !{i64 0, i64 8, !19, i64 8, i64 32, !47, i64 40, i64 8, !19, i64 48, i64 8, !19}
!91 = !{i64 0, i64 8, !19, i64 8, i64 8, !19}
!92 = !{i64 0, i64 8, !19}
!93 = !{!73, !9, i64 208}
!94 = !{!5, !9, i64 168}
!95 = !{!73, !9, i64 216}
!96 = !{!75, !9, i64 168}
!97 = !{!75, !9, i64 176}
!98 = !{!73, !9, i64 224}
!99 = !{!73, !9, i64 1896}
!100 = !{!73, !9, i64 1904}
!101 = distinct !{!101, !18}
!102 = !{!55, !12, i64 20}
!103 = !{!104, !9, i64 8}
!104 = !{!"kernel", !9, i64 0, !9, i64 8, !7, i64 16}
!105 = !{!104, !9, i64 0}
!106 = !{!73, !9, i64 720}
!107 = !{!73, !9, i64 520}
!108 = !{!73, !9, i64 480}
!109 = !{!73, !9, i64 488}
!110 = !{!73, !9, i64 496}
!111 = distinct !{!111, !18}
!112 = !{!55, !9, i64 0}
!113 = !{!73, !9, i64 792}
!114 = !{!73, !9, i64 408}
!115 = distinct !{!115, !18}
!116 = !{!73, !9, i64 728}
!117 = distinct !{!117, !18}
!118 = distinct !{!118, !18}
