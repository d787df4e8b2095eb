from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.short_names import demangled, shorten, shorten_column, without_middle, without_parameters

AT = "void at::native::"
ADD = (
    f"{AT}vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
    "(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
SUM = (
    f"{AT}reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float, "
    "at::native::sum_functor<float, float, float>::operator()(at::TensorIterator&)::{lambda(float, float)#1}>, "
    "unsigned int, float, 4> >(at::native::ReduceOp<float>)"
)
CLAMP = (
    f"{AT}vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::launch_clamp_scalar("
    "at::TensorIteratorBase&, c10::Scalar, c10::Scalar)::{lambda()#1}::operator()() const::{lambda()#7}, "
    "std::array<char*, 2ul> >(int)"
)
FLASH_BWD = (
    "void cutlass::device_kernel<flash::FlashAttnBwd<flash::CollectiveMainloopBwd<2, cute::tuple<cute::C<1> > > > >"
    "(flash::FlashAttnBwd::Params)"
)
TENSILE = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT320x224x64_MI16x16x1_SN_LDSB0_AFC1_AG0"
CK_CONV = "_ZN2ck16tensor_operation6device12_GLOBAL__N_136kernel_grouped_conv_fwd_xdl_cshuffleINS_8GridwiseEEEvv"
RMSNORM = "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16EEEvPT0_"


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (ADD, "vectorized_elementwise_kernel<CUDAFunctor_add>"),
        (SUM, "reduce_kernel<sum_functor>"),
        (CLAMP, "vectorized_elementwise_kernel<launch_clamp_scalar>"),
        (FLASH_BWD, "flash::FlashAttnBwd"),
        (TENSILE, "Cijk_Alik_Bljk_BBS_BH_MT320x224x64_MI16x16x1"),
        (CK_CONV, "ck::tensor_operation::device::kernel_grouped_conv_fwd_xdl_cshuffle"),
        (RMSNORM, "aiter::add_rmsnorm_quant_kernel"),
        ("_Z9my_kernelPfi", "my_kernel"),
        ("_Znothing", "_Znothing"),
        ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float>(int)",
         "multi_tensor_apply_kernel<AdamFunctor>"),
        ("void elementwise_kernel<128>(int)", "elementwise_kernel"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_AllGather_RING_LL"),
        ("void (anonymous namespace)::softmax_warp_forward<float, 8>(float*)", "softmax_warp_forward"),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int>(int)", "internal::gemvx::kernel"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD"),
        ("aten::mm", "aten::mm"),
        ("<lambda>", "<lambda>"),
        ("", ""),
    ],
)  # fmt: skip
def test_shorten_keeps_the_telling_part(name, short):
    assert shorten(name, 100) == short


def test_shorten_cuts_the_middle_and_keeps_both_ends():
    short = shorten("triton_red_fused__unsafe_view_add_addmm_mul_native_layer_norm_split_unsqueeze_19", 40)
    assert short == "triton_red_fused__unsafe_v…_unsqueeze_19"


def test_shorten_takes_no_nameless_namespace_for_template_arguments():
    assert shorten("void unnamed>::distribution_kernel<float>(int)") == "distribution_kernel"  # as ncu wrote it
    name = "void at::native::<unnamed>::CatArrayBatchedCopy<at::native::<unnamed>::OpaqueType<2>, int>(char *)"
    assert shorten(name) == "CatArrayBatchedCopy"


def test_shorten_drops_namespaces_before_it_cuts():
    assert shorten("void first::second::third::a_kernel<int>(int)", 12) == "a_kernel"


def cloverleaf(name: str) -> str:
    """A kernel of CloverLeaf, as a template that all of its kernels share."""
    return (
        f"void clover::par_ranged2d_kernel<{name}_kernel(int, int, clover::Buffer2D<double>&)::{{lambda(int, int)#1}}>"
        f"(clover::Range2d, {name}_kernel(int, int, clover::Buffer2D<double>&)::{{lambda(int, int)#1}})"
    )


def composable(kernel: str, tile: int) -> str:
    """A kernel of Composable Kernel, inside its entry."""
    return (
        "void ck_tile::kentry<256, 2, "
        f"ck_tile::{kernel}<ck_tile::BlockGemmPipeline<ck_tile::sequence<{tile}, 128> > > >"
        f"(ck_tile::{kernel}<ck_tile::BlockGemmPipeline<ck_tile::sequence<{tile}, 128> > >::Kargs)"
    )


def gemm(tile: int, element: str) -> str:
    """A kernel of CUTLASS, inside its entry."""
    return (
        "void cutlass::Kernel<cutlass::gemm::kernel::Gemm<cutlass::gemm::threadblock::MmaMultistage<"
        f"cutlass::gemm::GemmShape<(int){tile}, (int)128, (int)32>, cutlass::{element}>>>(T1::Params)"
    )


def tensile(tile: str, lds: int) -> str:
    """A kernel of Tensile with its many options."""
    return f"Cijk_Alik_Bljk_HHS_BH_Bias_HA_S_SAV_UserArgs_MT{tile}_MI16x16x1_SN_LDSB0_AFC1_LBSPPA{lds}_LPA32_WG32_8_1"


@pytest.mark.parametrize(
    ("full", "width", "expected"),
    [
        (
            [cloverleaf("advec_cell"), cloverleaf("advec_mom"), cloverleaf("viscosity")],
            44,
            [
                "clover::par_ranged2d_kernel<advec_cell>",
                "clover::par_ranged2d_kernel<advec_mom>",
                "clover::par_ranged2d_kernel<viscosity>",
            ],
        ),
        (
            [composable("FmhaFwdKernel", 64), composable("GemmKernel", 64), composable("GemmKernel", 32)],
            40,
            ["ck_tile::FmhaFwdKernel", "ck_tile::GemmKernel<…64>", "ck_tile::GemmKernel<…32>"],
        ),
        (
            [gemm(128, "half_t"), gemm(256, "half_t"), gemm(256, "bfloat16_t")],
            28,
            ["Gemm<…128>", "Gemm<…256…half_t>", "Gemm<…256…bfloat16_t>"],
        ),
        (
            [tensile("64x32x256", 512), tensile("32x32x256", 512), tensile("32x32x256", 1024)],
            40,
            [
                "Cijk_Alik_Bljk_HHS_BH_MT64x32x256",
                "Cijk_Alik_Bl…HS_BH_MT32x32x256…LBSPPA512",
                "Cijk_Alik_B…HS_BH_MT32x32x256…LBSPPA1024",
            ],
        ),
    ],
    ids=["cloverleaf", "composable kernel", "cutlass", "tensile"],
)  # fmt: skip
def test_names_of_a_column_keep_what_sets_them_apart(full, width, expected):
    assert shorten_column(full, width) == expected


def test_names_of_words_alone_keep_as_much_as_there_is_room_for():
    names = [f"triton_red_fused_add_addmm_mul_native_layer_norm_split_unsqueeze_view_{i}" for i in (16, 18)]
    assert shorten_column(names, 44) == [f"triton_red_fused_add_addmm_mu…queeze_view_{i}" for i in (16, 18)]


def test_paths_lose_their_middle_and_keep_the_name_of_the_file():
    paths = [f"/home/somebody/projects/training/runs/2026-11-22/rank{rank}.pt.trace.json.gz" for rank in (0, 1)]
    assert shorten_column(paths, 48) == [f"/home/…/runs/2026-11-22/rank{rank}.pt.trace.json.gz" for rank in (0, 1)]
    assert shorten_column(paths, 28) == [f"…/rank{rank}.pt.trace.json.gz" for rank in (0, 1)]


def test_lines_of_python_keep_their_file_and_function():
    assert shorten_column(["site-packages/torch/nn/modules/module.py(1501): _call_impl"], 40) == [
        "…/module.py(1501): _call_impl"
    ]


def test_where_all_names_fit_nothing_changes():
    full = ["void a::kernel(int)", "aten::mm"]
    assert shorten_column(full, 19) == full


def test_names_that_differ_in_their_parameters_only_keep_those():
    full = ["void a::a_kernel_with_a_name(float*)", "void a::a_kernel_with_a_name(double*)"]
    assert shorten_column(full, 34) == ["a::a_kernel_with_a_name(float*)", "a::a_kernel_with_a_name(double*)"]


def test_no_nameless_namespace_is_cut_in_two():
    full = [f"void at::<unnamed>::CatArrayBatchedCopy<at::<unnamed>::Opaque<{i}>, {i}>(char *)" for i in range(30)]
    for width in range(22, 60):
        assert not any("nnamed" in text for text in shorten_column(full, width))


def test_no_number_is_cut_in_two():
    assert without_middle("gemm_bf16_128x256_stages_4_tn", 20) == "gemm_bf16_…s_4_tn"
    assert without_middle("gemm_bf16_stages_128x256_tn", 16) == "gemm_bf16_…_tn"
    assert without_middle("abcdefgh", 5) == "abc…h"


WORDS = st.sampled_from(["void ", "a::", "kernel", "<", ">", "(", ")", "_", "128", "x", "64", ", ", "float", "Cijk_"])
NAMES = st.lists(st.lists(WORDS, max_size=12).map("".join) | st.text(max_size=40), max_size=12)


@given(NAMES, st.integers(1, 60))
def test_no_name_is_wider_than_the_column_and_shortening_twice_changes_nothing(full, width):
    short = shorten_column(full, width)
    assert len(short) == len(full)
    assert max(map(len, short), default=0) <= width
    assert shorten_column(short, width) == short
    assert [len(set(pair)) for pair in (full, short)][1] <= len(set(full))
    assert all(a == b for a, b in zip(full, short, strict=True) if max(map(len, full)) <= width)


@given(st.lists(st.integers(0, 10**6), unique=True, min_size=2, max_size=40), st.integers(24, 60))
def test_different_names_stay_different_where_there_is_room(numbers, width):
    full = [f"void library::some_kernel_with_a_long_name<{n % 7}, {n}, float>(float const*, int)" for n in numbers]
    assert len(set(shorten_column(full, width))) == len(full)


@given(NAMES, st.integers(1, 60))
def test_equal_names_stay_equal(full, width):
    short = shorten_column([*full, *full], width)
    assert short[: len(full)] == short[len(full) :]


def test_arguments_of_a_mangled_name_are_read_roughly():
    name = "_ZN2ck4convINS_8GridwiseIDF16bLi256ELb1EEELNS_4SpecE2ELin1EEEvv"
    assert demangled(name, with_arguments=True) == "ck::conv<Gridwise, bf16, 256, true, Spec, 2, -1>"
    assert demangled(name) == "ck::conv"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("f(int, g(float))", "f"),
        ("f<(int)4>(int)", "f<(int)4>"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        ("unbalanced)", "unbalanced)"),
        ("(a)", "(a)"),
    ],
)
def test_only_parameters_are_taken_off(name, expected):
    assert without_parameters(name) == expected


def test_the_ending_of_amds_symbols_goes_where_names_stay_different():
    assert shorten_column(["gemm.kd", "add"], 20) == ["gemm", "add"]
    assert shorten_column(["gemm.kd", "gemm"], 20) == ["gemm.kd", "gemm"]
    assert shorten("gemm.kd") == "gemm"


def test_a_call_keeps_its_file_and_line():
    long = "/home/user/projects/a-very-long-name-of-a-project/src/package/models/layers.py"
    names = [f"forward ({long}:39)", f"forward ({long}:402)", "scaled_dot_product_attention (/job/model.py:434)", "mm"]
    assert shorten_column(names, 32) == [
        "forward (layers.py:39)", "forward (layers.py:402)", "scaled_dot_…ntion (model.py:434)", "mm",
    ]  # fmt: skip
    assert shorten(names[0], 30) == "forward (layers.py:39)"


def test_calls_in_files_of_one_name_stay_different():
    names = [f"forward (/job/{folder}/{'x' * 40}/model.py:39)" for folder in ("encoder", "decoder")]
    short = shorten_column(names, 30)
    assert len(set(short)) == 2
    assert all(len(name) <= 30 for name in short)
