"""Which variables need a new fork server, and which a run may have otherwise than the run before it."""

from __future__ import annotations

import pytest

from covey.engines.process.inherited import early, in_order

FIXED = (
    "OMP_NUM_THREADS", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LD_PRELOAD",
    "LD_LIBRARY_PATH", "MALLOC_ARENA_MAX", "TZ", "LANG", "LC_ALL", "HOME", "PYTHONHASHSEED", "TORCH_LOGS",
    "TORCH_SHOW_CPP_STACKTRACES", "TORCHINDUCTOR_MAX_AUTOTUNE", "PYTORCH_CUDA_ALLOC_CONF", "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG", "CUDNN_LOGLEVEL_DBG", "NVIDIA_TF32_OVERRIDE", "NCCL_DEBUG",
    "GLOO_SOCKET_IFNAME", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "TRITON_CACHE_DIR", "NUMBA_NUM_THREADS",
)  # fmt: skip
FREE = ("PYTHONPATH", "PATH", "COVEY_RUNS", "TORCHELASTIC_RUN_ID", "TORCHINDUCTOR_CACHE_DIR", "RANK", "MY_DATA", "PWD")


@pytest.mark.parametrize("name", FIXED)
def test_what_libraries_read_when_they_are_loaded_is_fixed(name: str) -> None:
    assert early({name.encode(): b"1"})


@pytest.mark.parametrize("name", FREE)
def test_what_a_run_reads_itself_is_not(name: str) -> None:
    assert not early({name.encode(): b"1"})


def test_what_is_fixed_comes_first_where_tools_look_for_the_environment() -> None:
    given = {name.encode(): b"1" for pair in zip(FREE, FIXED, strict=False) for name in pair}
    ordered = [bool(early({name: b"1"})) for name in in_order(given)]
    assert ordered == sorted(ordered, reverse=True) and set(in_order(given)) > set(given)
