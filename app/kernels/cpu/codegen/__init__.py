"""Generation of vector code: instructions, intrinsics, tiles, functions of mathematics."""
