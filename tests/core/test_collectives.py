from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core import collectives
from stepscope.core.errors import StepscopeError

#: A name as a trace has it, the kind of collective, and whether one of a library (`True`) or one that communicates by
#: itself (`False`).
NAMES = [
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "allreduce", True),
    ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "allreduce", True),
    ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "allgather", True),
    ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce_scatter", True),
    ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "broadcast", True),
    ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", "send_recv", True),
    ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", None, True),
    ("ncclRecv", "recv", True),
    ("nccl:_all_gather_base", "allgather", True),
    ("nccl:all_to_all", "alltoall", True),
    ("mscclKernel_Sum_half_Simple(ncclDevComm*)", None, True),
    ("hcom_allReduce__586_3_1", "allreduce", True),
    ("hcom_broadcast__586_0_1", "broadcast", True),
    ("hcom_receive__586_0_1", "recv", True),
    ("HcclAllreduce", "allreduce", True),
    ("cncl:all_reduce", "allreduce", True),
    ("ProcessGroupNCCL::AllReduce", "allreduce", True),
    ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", "allreduce", True),
    ("all-reduce.17", "allreduce", True),
    ("%all-gather-start.3", "allgather", True),
    ("collective-permute-start.3", "permute", True),
    ("ragged-all-to-all-start.2", "alltoall", True),
    ("collective-broadcast.1", "broadcast", True),
    ("%all-reduce.5 = f32[8]{0} all-reduce(f32[8]{0} %fusion.3), replica_groups={}", "allreduce", True),
    ("all-gather.7.remat", "allgather", True),
    ("mscclpp::allgather<4>(int)", "allgather", True),
    ("ncclAllReduce", "allreduce", True),
    ("MPI_Allreduce", "allreduce", False),
    ("MPI_Isend", "send", False),
    ("MPI_Waitall", None, False),
    ("send-done.3", "send", False),
    ("void hybrid_ep::dispatch_kernel<4>(int)", "alltoall", False),
    ("moeA2ADispatchKernel", "alltoall", False),
    ("c10d::allreduce_", "allreduce", False),
    ("c10d::_allgather_base_", "allgather", False),
    ("c10d::alltoall_base_", "alltoall", False),
    ("c10d::send", "send", False),
    ("c10d::recv_", "recv", False),
    ("c10d::barrier", "barrier", False),
    ("_c10d_functional::all_gather_into_tensor", "allgather", False),
    ("record_param_comms", None, False),
    ("gloo:reduce", "reduce", False),
    ("gloo:gather", "gather", False),
    ("gloo:scatter", "scatter", False),
    ("mpi:bcast", "broadcast", False),
    ("mpi:recvAnySource", "recv", False),
    ("vllm::all_reduce", "allreduce", False),
    ("c_allreduce_sum dygraph", "allreduce", False),
    ("All2All_Pooled_Req", "alltoall", False),
    ("Default/AllReduce-op534_0", "allreduce", False),
    ("symm_mem::multimem_all_reduce_", "allreduce", False),
    ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(int)", "allreduce", False),
    ("void trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<8>(int)", "allreduce", False),
    ("void flashinfer::norm::lamport_kernel<8>(int)", "allreduce", False),
    ("void deep_ep::internode::combine<false, 8>(int4*)", "alltoall", False),
    ("void dpsk::ep::internode::notify_dispatch<false, 8>(int const*, long*)", "alltoall", False),
    ("void deep_ep::intranode::cached_notify_combine<4>(void**)", "alltoall", False),
    ("void deep_ep::internode::cached_notify<false>(int)", "alltoall", False),
    ("nvshmemi_transfer_rma", None, False),
]


@pytest.mark.parametrize(("name", "kind", "library"), NAMES)
def test_a_name_says_the_kind_of_collective_and_whether_a_library_does_it(name, kind, library):
    assert collectives.is_communication(name)
    assert collectives.is_collective_library(name) is library
    assert collectives.kind_of(name) == kind
    assert collectives.communication_mark(name) in name.lower()
    assert collectives.communication_mark(name)


@pytest.mark.parametrize(
    "name",
    [
        "volta_sgemm_64x64_nt",
        "triton_poi_fused_add_all_reduce_wait_tensor_0",  # Inductor names what it fused around the collective
        "triton_poi_fused_nccl_all_reduce_add_0",
        "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)",  # counts on its own device
        "void deep_ep::internode::get_dispatch_layout<256, 32>(long const*)",
        "%fusion.3 = f32[8]{0} fusion(f32[8]{0} %all-reduce.5), kind=kLoop",
        "MPI_Comm_rank",
        "void at::native::_scatter_gather_elementwise_kernel<128, 4>(int)",
        "void oneflow::cuda::softmax::SoftmaxWarpImpl<float, WarpAllReduce<MaxOp>>(int)",
        "torch/distributed/distributed_c10d.py(2810): all_reduce",
        "<built-in method all_reduce of pybind11_builtins.ProcessGroup object>",
        "aten::reduce_sum",
        "aten::gather",
        "",
    ],
)
def test_what_computes_is_not_communication(name):
    assert not collectives.is_communication(name)
    assert not collectives.is_collective_library(name)
    assert collectives.library_of(name) is None


@given(st.text(max_size=40))
def test_kernels_of_libraries_communicate(name):
    assert collectives.is_communication(name) or not collectives.is_collective_library(name)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "all-reduce"),
        ("all-reduce.17", "all-reduce"),
        ("_allgather_base", "all-gather"),
        ("ncclKernel_ReduceScatter_RING_LL", "reduce-scatter"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", "send and receive"),
        ("all_to_allv", "all-to-all"),
        ("gloo:broadcast", "broadcast"),
        ("gloo:gather", "gather"),
        ("ncclDevKernel_Generic(ncclDevComm*)", "communication"),
    ],
)
def test_a_collective_is_called_what_people_call_it(name, label):
    assert collectives.label_of(name) == label


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("gloo:all_reduce", "gloo"), ("mpi:bcast", "mpi"), ("nccl:_all_gather_base", "nccl"), ("xccl:send", "xccl"),
        ("cncl:all_reduce", "cncl"), ("c10d::allreduce_", "c10d"), ("_c10d_functional::wait_tensor", None),
        ("a gloo:all_reduce", None), ("HcclAllreduce", "hccl"), ("ncclAllReduce", "nccl"), ("MPI_Bcast", "mpi"),
        ("ncclKernel_AllReduce_RING", None), ("ncclDevKernel_AllReduce", None), ("MPI_Ibcast", None),
        ("ncclGroupEnd", None),
    ],
)  # fmt: skip
def test_an_operator_may_name_its_library(name, library):
    assert collectives.library_of(name) == library


@pytest.mark.parametrize(
    ("which", "expected"),
    [("library", [True, False, False, None]), ("any", [True, True, False, None]), ("mm$", [False, False, True, None])],
)
def test_the_option_says_which_names_are_communication(which, expected):
    names = pl.Series("name", ["nccl:all_reduce", "c10d::allreduce_", "aten::mm", None])
    assert collectives.talks_to_ranks(names, which).to_list() == expected


def test_an_option_that_is_no_regular_expression_is_refused():
    with pytest.raises(StepscopeError, match=r"not a regular expression: '\('"):
        collectives.talks_to_ranks(pl.Series("name", ["x"]), "(")


def test_kinds_of_a_column_are_those_of_its_names():
    names = pl.Series("name", ["gloo:gather", None, "ncclDevKernel_Generic"], dtype=pl.Categorical())
    assert collectives.kinds_of(names).to_list() == ["gather", None, None]


FACTORS = [
    ("allreduce", 1.5), ("reduce_scatter", 0.75), ("allgather", 0.75), ("alltoall", 0.75), ("gather", 0.75),
    ("scatter", 0.75), ("broadcast", 1), ("reduce", 1), ("send", 1), ("recv", 1), ("send_recv", 1), ("permute", 1),
    ("barrier", None),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "among_four"), [*FACTORS, ("other", None), (None, None)])
def test_the_bus_factor_is_that_of_nccl_tests(kind, among_four):
    frame = pl.DataFrame({"kind": [kind] * 3, "n": [4, 1, None]}, schema={"kind": pl.String, "n": pl.Int32})
    factors = frame.select(collectives.bus_factor(pl.col("kind"), pl.col("n"))).to_series().to_list()
    assert factors == [among_four, None, 1 if among_four == 1 else None]


def test_every_kind_has_a_factor_in_the_table_of_these_tests():
    assert {kind for kind, _ in FACTORS} == set(collectives.KINDS)


def test_in_a_synchronising_collective_all_wait_for_all():
    assert collectives.SYNCHRONISING == ("allreduce", "reduce_scatter", "allgather", "alltoall", "barrier")
    assert set(collectives.POINT_TO_POINT) < set(collectives.KINDS)


@pytest.mark.parametrize(
    ("kind", "into", "out", "n", "size"),
    [
        ("allgather", 10, 80, 8, 80),
        ("allgather", 10, None, 8, 80),
        ("allgather", 10, None, None, None),
        ("reduce_scatter", 80, 10, 8, 80),
        ("reduce_scatter", None, 10, 8, 80),
        ("allreduce", 10, None, 8, 10),
        ("scatter", 10, 80, None, 80),
        ("broadcast", None, None, 8, None),
    ],
)
def test_the_size_of_a_collective_is_that_of_the_whole(kind, into, out, n, size):
    whole = collectives.size_of_whole(pl.lit(kind), *(pl.lit(value, pl.Int64) for value in (into, out, n)))
    assert pl.select(whole).item() == size
