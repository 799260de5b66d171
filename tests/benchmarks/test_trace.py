"""Kinds of operations; test_accelerator.py has a trace of real steps."""

from benchmarks.trace import by_kind, kind_of_kernel, kind_table

# From a trace of BERT-base on an H200.
KERNELS = {
  "nvjet_sm90_tst_128x128_64x6_2x1_v_bz_TNT": "products",
  "gemm_fusion_dot_154": "products",
  "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, ": "products",
  "void cudnn::fusion::convert_dq_to_16bits_ragged<true>(void const*, voi": "attention",
  "void cudnn::fusion::compute_dot_do_o_specialized<true, 64>(void const*": "attention",
  "input_reduce_select_fusion_23": "reductions",
  "loop_add_fusion_34": "element by element",
  "wrapped_convert_75": "element by element",
  "input_scatter_fusion_6": "element by element",
  "Memset": "copies and transposes",
  "fusion_2900": "fusions without a name",
  "an unknown kernel": "other kernels",
}


def test_kernels_of_gpus_have_kinds():
  assert {name: kind_of_kernel(name) for name in KERNELS} == KERNELS


def test_of_a_trace_of_a_gpu_only_streams_count():
  def named(what, name, **place):
    return {"ph": "M", "name": what, "args": {"name": name}, **place}

  def event(name, microseconds, pid, tid):
    return {"ph": "X", "name": name, "dur": microseconds, "pid": pid, "tid": tid}

  events = [
    named("process_name", "/device:GPU:0", pid=1),
    named("process_name", "/host:CPU", pid=2),
    named("thread_name", "Stream #13(Compute)", pid=1, tid=5),
    named("thread_name", "XLA Modules", pid=1, tid=7),
    named("thread_name", "Stream of the host", pid=2, tid=5),
    event("loop_add_fusion_34", 3.0, 1, 5),
    event("nvjet_sm90_tst_128x128_64x6_2x1_v_bz_TNT", 4.0, 1, 5),
    event("gemm_fusion_dot_154", 5.0, 1, 5),
    event("jit__train_step", 100.0, 1, 7),
    event("dot.3", 100.0, 2, 5),
  ]
  found = by_kind(events)
  assert [*found] == ["products", "element by element"]
  assert found["products"]["seconds"] == 9e-6
  assert found["products"]["launches"] == 2
  assert "| products | 0.01 | 75.0% | 2 |" in kind_table(found)
  assert by_kind([]) == {}
  of_cpu = by_kind([named("process_name", "/host:CPU", pid=2), event("dot.3", 1.0, 2, 5)])
  assert of_cpu == {"products": {"seconds": 1e-6, "launches": 1}}
