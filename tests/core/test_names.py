from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core import names

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
FLASH_PREPARE = FLASH_BWD.replace("FlashAttnBwd", "FlashAttnBwdPreprocess")
CUTLASS = "cutlass_80_tensorop_f16_s16816gemm_relu_f16_128x128_32x5_tn_align8"
TENSILE = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT320x224x64_MI16x16x1_SN_LDSB0_AFC1_AG0"
CK_CONV = "_ZN2ck16tensor_operation6device12_GLOBAL__N_136kernel_grouped_conv_fwd_xdl_cshuffleINS_8GridwiseEEEvv"
RMSNORM = "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16EEEvPT0_"

CLASSES = [
    ("gemm", "mul_mat_q<(ggml_type)12, 128, false>"), ("gemm", "mul_mat_vec_q6_K"),
    ("elementwise", "void addition_kernel<float>(float*, float const*)"),
    ("gemm", "volta_sgemm_64x64_nt"),
    ("gemm", "nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT"),
    ("gemm", f"void cutlass::Kernel2<{CUTLASS}>({CUTLASS}::Params)"),
    ("gemm", TENSILE),
    ("gemm", "void cublasLt::splitKreduce_kernel<32, 16, int, float>(cublasLt::cublasSplitKParams<float>)"),
    ("gemm", "_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1_swiglu"),
    ("gemm", "void deep_gemm::fp8_gemm_kernel<4096u>(float*)"),
    ("gemm", "triton_tem_fused_addmm_relu_3"),
    ("gemm", "aclnnMm_MatMulCommon_MatMulV2"),
    ("convolution", "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"),
    ("convolution", "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int)"),
    ("convolution", "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16"),
    ("convolution", "igemm_wrw_gtcx3_nhwc_bf16_bx0_ex1_bt64x64x64"),
    ("convolution", CK_CONV),
    ("convolution", "Default/network/_backbone-AlexNet/conv1-Conv2d/Conv2D-op8"),
    ("convolution", "convolution_add_fusion.12"),
    ("attention", "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128>>(int)"),
    ("attention", FLASH_BWD),
    ("attention", "fmha_cutlassF_f16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel::Params)"),
    ("attention", "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x128x128_4x1x1"),
    ("attention", "void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0>(int)"),
    ("attention", "kernel_unified_attention_2d"),
    ("attention", "triton_tem_fused_flex_attention_0"),
    ("norm", "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>(float, float)"),
    ("norm", f"{AT}(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, float)"),
    ("norm", "std::enable_if<(8>0)&&vllm::_typeConvert<int>::exists, void>::type vllm::rms_norm_kernel<8>(int)"),
    ("norm", RMSNORM),
    ("norm", "triton_red_fused_add_addmm_mul_native_layer_norm_split_view_16"),
    ("norm", "triton_per_fused__to_copy_add_mean_mul_pow_rsqrt_8"),
    ("softmax", "void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, false, false>(float*)"),
    ("softmax", "void scaled_upper_triang_masked_softmax_warp_forward<c10::Half>(c10::Half*)"),
    ("softmax", "triton_per_fused__softmax_2"),
    ("elementwise", ADD),
    ("elementwise", CLAMP),
    ("elementwise", "triton_poi_fused_addmm_gelu_view_15"),
    ("elementwise", "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel>(c10::BFloat16*)"),
    ("elementwise", "Default/data_trans-DataNormTranspose/RealDiv-op6"),
    ("reduction", SUM),
    ("reduction", f"{AT}(anonymous namespace)::max_pool_backward_nchw<float, float>(int, float const*)"),
    ("reduction", "triton_red_fused_sum_4"),
    ("reduction", f"{AT}reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::NormTwoOps<float>>>(int)"),
    ("copy", f"{AT}(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>(float*)"),
    ("copy", f"{AT}elementwise_kernel<128, 4, at::native::gpu_kernel_impl<at::native::direct_copy_kernel_cuda()>>()"),
    ("copy", "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(float)"),
    ("copy", "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, unsigned char>(int)"),
    ("copy", "aclnnMaxPool2dWithMask_TransDataSpecial_TransData"),
    ("copy", "copy-start.4"),
    ("collective", "ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"),
    ("collective", "all-reduce.27"),
    ("embedding", f"{AT}(anonymous namespace)::indexSelectLargeIndex<float, long, unsigned int, 2>(int)"),
    ("embedding", "void split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel_cta_per_row_1<float>(int)"),
    ("sort", "void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long, int>::Policy800>(int*)"),
    ("sort", f"{AT}sbtopk::gatherTopK<float, unsigned int, 2, false>(int)"),
    ("random", f"{AT}(anonymous namespace)::fused_dropout_kernel_vec<float, float, unsigned int, 1, 4, bool>(int)"),
    ("random", f"{AT}(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float, 4>(int)"),
    ("optimizer", "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float>(int)"),
    ("optimizer", "aclnnForeachAddListV2_ForeachAddListV2_ForeachAddList"),
    ("rope", "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)"),
    ("rope", "void fusedQKNormRopeKernel<128>(void*)"),
    ("quantization", "void vllm::scaled_fp8_quant_kernel_strided<c10::BFloat16>(int)"),
    ("quantization", "void fbgemm_gpu::_FP8rowwise_to_float_cuda_kernel<float>(unsigned char const*)"),
    ("quantization", "void tensorrt_llm::kernels::quantize_with_block_size<2>(flashinfer::QuantizationSFLayout)"),
    ("moe", "void moe::dev::routing::routingIndicesHistogramKernel<moe::dev::KernelParams>(int)"),
    ("moe", "fused_moe_kernel"),
    ("moe", "void vllm::moe::topkGatingSoftmax<4, 128>(float const*)"),
    ("memory", "Memcpy DtoD (Device -> Device)"),
    ("memory", f"{AT}vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul>>(int)"),
    ("memory", "__amd_rocclr_fillBufferAligned"),
    ("other", "triton__0d1d2d3de"),
    ("other", "unbalanced)"),
    ("other", "fusion.386"),
    ("other", ""),
]  # fmt: skip


@pytest.mark.parametrize(("expected", "name"), CLASSES)
def test_kernel_class(expected, name):
    assert names.kernel_class(name) == expected


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("Kernel", ("gemm", "kernel")),
        ("Kernel2", ("gemm", "kernel2")),
        ("MyKernel", ("other", "")),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm>(T1::Params)", ("gemm", "cutlass_80_tensorop")),
        ("splitKreduce_kernel", ("gemm", "splitk")),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", ("collective", "nccl")),
    ],
)
def test_the_part_of_the_name_that_told_the_class(name, rule):
    assert names.kernel_rule(name) == rule


def test_every_class_has_an_example():
    assert {expected for expected, _ in CLASSES} == set(names.KERNEL_CLASSES)


@given(st.text(max_size=80))
def test_any_text_is_classed_and_shortened_without_error(name):
    assert names.kernel_class(name) in names.KERNEL_CLASSES
    assert len(names.shorten(name, 20)) <= 20
    assert names.transfer_kind(name) in {"HtoD", "DtoH", "DtoD", "PtoP", "HtoH", "memset", "unknown"}
    assert names.step_number(name) is None or name.startswith("ProfilerStep#")


@pytest.mark.parametrize(
    "name",
    [
        "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn",
        "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn",
        f"void cutlass::Kernel2<{CUTLASS}>({CUTLASS}::Params)",
        "void cutlass::Kernel2<cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1>(T1::Params)",
        "sm80_xmma_gemm_f64f64_f64f64_f64_nn_n_tilesize64x64x16_stage4_warpsize2x2x1_tensor8x8x4_kernel",
        "Cijk_Ailk_Bljk_DB_MT64x64x16_MI16x16x4x1_SN_K1",
        "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>(int)",
        "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tensor16x8x8_execute_kernel",
        "nvjet_tst_144x128_64x6_2x1_v_bz_bias_TNN",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1",
        "bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x64x256_s4_et128x64_m128x64x32_sm100f",
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128>>(int)",
        FLASH_BWD,
        "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext",
        "fmha_cutlassF_f16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::Params)",
        TENSILE,
        CK_CONV,
        "void paged_attention_ll4mi_QKV_mfma16_kernel<0, __hip_bfloat16>(int)",
        "triton_tem_fused_flash_attention_fwd_0",
    ],
)
def test_names_that_tell_of_matrix_units(name):
    assert names.is_tensor_core(name)


@pytest.mark.parametrize(
    "name",
    [
        "volta_sgemm_64x64_nt",
        "volta_dgemm_64x64_nt",
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_execute_kernel",
        "sm80_xmma_gemm_f64f64_f64f64_f64_nn_n_tilesize64x64x8_stage3_warpsize2x2x1_dfma_execute_kernel__5x_cublas",
        "sm90_xmma_gemm_f64f64_f64f64_f64_nn_n_tilesize64x64x8_execute_kernel__5x_cublas",
        "void cudnn::cnn::conv2d_c1_k1_nchw_hw_packed_kernel<double, double, 3>(double const*)",
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(int)",
        "fmha_cutlassF_f32_aligned_64x64_rf_sm50(PyTorchMemEffAttention::Params)",
        "Cijk_Ailk_Bljk_SB_MT128x64x16_SN_TT8_8",
        "SubTensorOpWithScalar1d",
        FLASH_PREPARE,
        "void pytorch_flash::flash_fwd_splitkv_combine_kernel<int>(int)",
        "triton_poi_fused__scaled_dot_product_flash_attention_view_10",
        ADD,
    ],
)
def test_names_that_do_not(name):
    assert not names.is_tensor_core(name)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "HtoD"),
        ("Memcpy DtoH (Device -> Pinned)", "DtoH"),
        ("Memcpy DtoD (Device -> Device)", "DtoD"),
        ("Memcpy PtoP (Device -> Device)", "PtoP"),
        ("Memcpy HtoH (Host -> Host)", "HtoH"),
        ("Memset (Device)", "memset"),
        ("CopyHostToDevice", "HtoD"),
        ("CopyDeviceToHost", "DtoH"),
        ("CopyDeviceToDevice", "DtoD"),
        ("FillBuffer", "memset"),
        ("MEMORY_COPY_HOST_TO_DEVICE", "HtoD"),
        ("[CUDA memcpy Device-to-Host]", "DtoH"),
        ("MemcpyD2H", "DtoH"),
        ("enqueueCommand memcpyHtoDAsync", "HtoD"),
        ("hipMemcpyAsync", "unknown"),
    ],
)
def test_transfer_kind(name, kind):
    assert names.transfer_kind(name) == kind


LAUNCHES = [
    "cudaLaunchKernel", "cudaLaunchKernelExC", "cudaLaunchCooperativeKernel", "cuLaunchKernel", "cuLaunchKernelEx",
    "cudaMemcpyAsync", "cudaMemcpy", "cudaMemsetAsync", "cudaMemcpyToSymbolAsync", "cuMemcpyHtoDAsync_v2",
    "hipLaunchKernel", "hipExtModuleLaunchKernel", "hipModuleLaunchKernel", "hipExtLaunchKernel",
    "hipMemcpyWithStream", "hipMemsetAsync", "cnInvokeKernel", "cnrtMemcpyAsync", "cnMemsetD8Async",
    "aclrtMemcpyAsync", "AscendCL@aclnnMm", "Node@launch", "urEnqueueKernelLaunch", "urEnqueueUSMMemcpy",
    "zeCommandListAppendLaunchKernel", "enqueueCommand memcpyHtoDAsync",
    "runFunction - job_prep_and_submit_for_execution",
]  # fmt: skip
GRAPH_LAUNCHES = ["cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch", "cudaGraphLaunch_ptsz", "aclmdlRIExecuteAsync"]
SYNCS = [
    "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cuCtxSynchronize",
    "hipDeviceSynchronize", "hipStreamSynchronize", "cnrtQueueSync", "cnrtSyncDevice",
    "AscendCL@aclrtSynchronizeStream", "urQueueFinish", "synchronizeStream",
]  # fmt: skip
NEITHER = [
    "cudaStreamWaitEvent", "cudaEventRecord", "cudaEventQuery", "cudaMalloc", "cudaMallocAsync", "cudaFuncSetAttribute",
    "cudaMemPrefetchAsync", "cudaGetDevice", "cudaStreamIsCapturing", "cudaLaunchHostFunc", "cuLaunchHostFunc",
    "hipPointerGetAttribute", "hipGraphInstantiateWithFlags", "enqueueCommand waitOnEvent", "recordEvent",
    "aclnnMm_MatMulCommon_MatMulV2", "AscendCL@aclnnMmGetWorkspaceSize", "aten::mm", "INVALID", "",
]  # fmt: skip


@pytest.mark.parametrize("name", LAUNCHES + GRAPH_LAUNCHES)
def test_calls_that_put_work_on_a_device(name):
    assert names.is_launch_call(name)
    assert names.is_graph_launch(name) == (name in GRAPH_LAUNCHES)
    assert not names.is_sync_call(name)


@pytest.mark.parametrize("name", SYNCS)
def test_calls_that_only_wait(name):
    assert names.is_sync_call(name)
    assert not names.is_launch_call(name)


@pytest.mark.parametrize("name", NEITHER)
def test_calls_that_do_neither(name):
    assert not names.is_launch_call(name)
    assert not names.is_sync_call(name)
    assert not names.is_graph_launch(name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", True),
        ("enumerate(DataPipe)#IterDataPipe", True),
        ("torch/utils/data/dataloader.py(703): __next__", True),
        ("torch/utils/data/dataloader.py(1200): _try_get_data", False),
        ("DataLoader setup", False),
        ("enumerate(words)", False),
    ],
)
def test_is_dataloader(name, expected):
    assert names.is_dataloader(name) is expected


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("ProfilerStep#12", 12),
        ("ProfilerStep#0", 0),
        ("ProfilerStep#12 (extra)", 12),
        ("ProfilerStep#", None),
        ("ProfilerStep#x", None),
        ("ProfilerStep#" + "9" * 40, None),
        ("myProfilerStep#3", None),
        ("step 12", None),
        ("", None),
    ],
)
def test_step_number(name, step):
    assert names.step_number(name) == step


KINDS = [pl.String(), pl.Categorical(), pl.Enum(["a", "b", "c"])]


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_map_names_calls_once_for_each_distinct_name_and_keeps_nulls(dtype):
    calls: list[str] = []

    def upper(name):
        calls.append(name)
        return name.upper()

    series = pl.Series("name", ["a", "b", None, "a", "b", "a"], dtype=dtype)
    found = names.map_names(series, upper, pl.String())
    assert found.to_list() == ["A", "B", None, "A", "B", "A"]
    assert found.name == "name"
    assert sorted(calls) == ["a", "b"]


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("values", [[], [None, None]], ids=["no rows", "only nulls"])
def test_map_names_of_no_names(dtype, values):
    found = names.map_names(pl.Series("name", values, dtype=dtype), names.is_dataloader, pl.Boolean())
    assert found.to_list() == values
    assert found.dtype == pl.Boolean


def test_map_names_may_give_null_and_any_type():
    series = pl.Series(["ProfilerStep#3", "other", "ProfilerStep#4"], dtype=pl.Categorical())
    assert names.map_names(series, names.step_number, pl.Int64()).to_list() == [3, None, 4]
    classes = names.map_names(series, names.kernel_class, pl.Enum(names.KERNEL_CLASSES))
    assert classes.to_list() == ["other"] * 3


def test_map_names_ignores_categories_of_other_series():
    pl.Series(["unrelated"], dtype=pl.Categorical())
    series = pl.Series(["x", "y"], dtype=pl.Categorical()).filter(pl.Series([True, False]))
    seen: list[str] = []
    names.map_names(series, lambda name: seen.append(name) or True, pl.Boolean())
    assert seen == ["x"]


@pytest.mark.parametrize(
    "name",
    [
        "aten::_convolution", "aten::conv1d", "aten::conv3d", "aten::conv_tbc", "aten::conv_transpose2d",
        "aten::convolution", "aten::cudnn_convolution", "aten::cudnn_convolution_transpose", "aten::addmm",
        "aten::addmv", "aten::addr", "aten::matmul", "aten::mm", "aten::mv", "aten::linear", "aten::addbmm",
        "aten::baddbmm", "aten::bmm", "aten::chain_matmul", "aten::linalg_multi_dot", "aten::_thnn_fused_lstm_cell",
        "aten::_thnn_fused_gru_cell", "aten::lstm_cell", "aten::gru_cell", "aten::rnn_tanh_cell",
        "aten::rnn_relu_cell", "CudnnConvolutionBackward", "BmmBackward0", "CudnnConvolutionTransposeBackward",
        "MmBackward", "AddmvBackward", "MvBackward", "AddmmBackward", "AddbmmBackward",
        "aten::cudnn_convolution_transpose_backward_weight", "aten::cudnn_convolution_backward_input", "aten::addmm_",
        "aten::convolution_backward", "ConvolutionBackward0", "AddmmBackward0", "aten::miopen_convolution",
        "aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_efficient_attention_backward",
        "aten::_flash_attention_forward", "aten::_flash_attention_backward", "aten::scaled_dot_product_attention",
        "aten::_efficient_attention_forward", "ScaledDotProductFlashAttentionBackward0",
        "aten::_scaled_mm", "aten::_grouped_mm", "aten::_int_mm", "aten::_weight_int4pack_mm", "aten::_cudnn_rnn",
        "aten::einsum", "aten::linear_backward", "LinearBackward0", "flash_attn::_flash_attn_forward",
    ],
)  # fmt: skip
def test_operators_with_products_are_eligible_for_matrix_units(name):
    assert names.is_tensor_core_eligible(name)


@pytest.mark.parametrize(
    "name",
    [
        "aten::prelu", "aten::add", "aten::relu", "aten::convert", "aten::comm", "aten::_softmax", "aten::layer_norm",
        "aten::norm", "aten::move_to", "aten::mul", "MulBackward0", "AddBackward0", "aten::embedding", "aten::copy_",
        "autograd::engine::evaluate_function: MmBackward0", "aten::address", "nccl:all_reduce", "record_param_comms",
    ],
)  # fmt: skip
def test_other_operators_are_not(name):
    assert not names.is_tensor_core_eligible(name)
