"""The whole engine on the GPU's kernels, through Triton's interpreter, on a random model of two layers."""

from __future__ import annotations

import numpy as np
import pytest
from engine_settings import small_llm
from gguf import GGMLQuantizationType
from small_models import new_llama, save_tokenizer, write_gguf

from engine.errors import ConfigError
from engine.sampling_params import SamplingParams
from kernels.triton.graphs import DecodeGraphs
from kernels.triton.linear import Fp8Linear


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("two-layers")
    new_llama(initializer_range=0.2).save_pretrained(directory)
    save_tokenizer(directory)
    return str(directory)


def test_chunks_prefix_hits_and_preemption_give_the_tokens_of_the_reference(model: str) -> None:
    shared = list(range(10, 50))
    prompts = [[*shared, 60 + i] for i in range(3)] + [list(range(100 + i, 120 + i)) for i in range(2)]
    params = [SamplingParams(temperature=0, max_tokens=12, ignore_eos=True) for _ in prompts]
    reference = small_llm(model=model, kernels="reference")
    expected = [reference.generate(prompt, params[0], use_tqdm=False)[0].outputs[0].token_ids for prompt in prompts]

    llm = small_llm(model=model, kernels="triton", max_model_len=64, num_gpu_blocks_override=7, max_num_batched_tokens=24, max_num_seqs=5)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs] == expected
    stats = llm.engine.stats()
    assert stats.preemptions_total > 0
    assert stats.prefix_cache_hits_total > 0
    llm.engine.check()


@pytest.mark.parametrize(("form", "kv_cache_dtype"), [(GGMLQuantizationType.Q4_1, "fp8"), (GGMLQuantizationType.Q8_0, "int8")])
def test_quantised_weights_and_keys_of_8_bits_give_the_tokens_of_the_reference(
    tmp_path, form: GGMLQuantizationType, kv_cache_dtype: str
) -> None:
    path = str(write_gguf(tmp_path / "model.gguf", new_llama(initializer_range=0.2), form))
    prompts = [list(range(10, 40)), [7]]
    params = [
        SamplingParams(temperature=0, max_tokens=6, ignore_eos=True),
        SamplingParams(seed=1, top_p=0.9, max_tokens=6, ignore_eos=True),
    ]
    settings = {"model": path, "kv_cache_dtype": kv_cache_dtype, "max_model_len": 64, "num_gpu_blocks_override": 8}
    results = [
        [output.outputs[0].token_ids for output in small_llm(kernels=kernels, **settings).generate(prompts, params, use_tqdm=False)]
        for kernels in ("reference", "triton")
    ]
    assert results[0] == results[1]


def test_a_checkpoint_rounded_to_8_bit_floats_gives_about_the_probabilities_of_what_it_was_rounded_to(model: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    prompt = list(range(10, 40))
    engines = [small_llm(model=model, kernels=kernels, quantization="fp8", max_model_len=64) for kernels in ("reference", "triton")]
    layer = engines[1].engine._executor._runner._model.layers[0]  # type: ignore[attr-defined]
    assert isinstance(layer.mlp.down_proj.packed, Fp8Linear)
    expected, actual = (
        np.array([entry.chosen.logprob for entry in llm.generate(prompt, params, use_tqdm=False)[0].prompt_logprobs[1:]]) for llm in engines
    )
    # Activations are rounded to three bits of mantissa, too.
    assert 0 < np.abs(actual - expected).mean() < 0.3
    assert np.corrcoef(actual, expected)[0, 1] > 0.98


def test_decodes_replay_graphs_unless_steps_are_to_run_operation_by_operation(model: str) -> None:
    for enforce_eager in (False, True):
        llm = small_llm(model=model, kernels="triton", enforce_eager=enforce_eager, max_model_len=64)
        runner = llm.engine._executor._runner  # type: ignore[attr-defined]
        assert isinstance(runner._forward, DecodeGraphs) != enforce_eager


def test_a_type_of_keys_and_values_that_the_kernels_do_not_read_is_refused(model: str) -> None:
    with pytest.raises(
        ConfigError, match="kv_cache_dtype fp8 is not for the cpu kernels on this device, which keep keys and values as float32"
    ):
        small_llm(model=model, kernels="cpu", kv_cache_dtype="fp8")


def test_deterministic_is_refused_for_kernels_that_cannot_be(model: str) -> None:
    with pytest.raises(ConfigError, match="the reference kernels cannot be deterministic"):
        small_llm(model=model, kernels="reference", deterministic=True)


def test_passes_that_are_recorded_anew_and_warmed_up_give_the_tokens_that_they_gave(model: str) -> None:
    """As when the cache was given back while the engine slept, and lies elsewhere since."""
    prompts, params = [[5, 6, 7], list(range(10, 20))], SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    llm = small_llm(model=model, kernels="triton", max_model_len=64, max_num_batched_tokens=24, max_num_seqs=2, enable_prefix_caching=False)
    expected = [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]
    runner = llm.engine._executor._runner  # type: ignore[attr-defined]
    runner.record()
    runner._warm_up()
    assert [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)] == expected
