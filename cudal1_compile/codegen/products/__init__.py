"""Kernel templates of sums of products: which side of a tile an axis runs along, how operands reach it, schedules.

implicit GEMM with tiles copied by all threads (multistage), in bulk (bulk_copy), for warp groups (warp_groups),
with halo tiles computed by producer warps (implicit_gemm); halo tiles in shared memory (halo_tile,
few_channel_halo); register-blocked direct convolution (register_blocked*); reductions fused into the epilogue
(epilogue_reduction).
"""
