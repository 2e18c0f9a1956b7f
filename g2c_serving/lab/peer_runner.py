"""Another engine in a process of its own, for `peer_process.py`. Runs under any Python.

    python peer_runner.py KIND FOLDER DTYPE MODE

It imports nothing of this project: the Python that has vLLM need not have us. It says one line of
JSON when the engine is up; then it reads a line for each round, {"prompts": [[ids]], "new": n}, and
answers {"ids": [[new ids]], "cpu": CPU-seconds of this process}. Whatever the
engine prints goes to the error output. One thread, greedy, no prefix cache, to the full length.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

TOKENS_A_STEP, MOST_REQUESTS = 1024, 128
MOST_TOKENS = 2048  # of a request: a long context would not fit into the cache
SCRATCH = "PEER_SCRATCH"  # names a folder for what an engine writes: the model's is only read
MEASURED = {  # what the comparison rests on, whatever the user's environment says
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",  # goes before OMP's, where it is set
    "OPENBLAS_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else it takes the cores that it likes
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process: its CPU time is counted
}
DEFAULTS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
Serve = Callable[[list[list[int]], int], list[list[int]]]


def vllm(folder: str, dtype: str, mode: str) -> tuple[str, Serve]:
    """vLLM's offline engine. mode: eager, or compiled (needs a C++ compiler, and a minute)."""
    import vllm

    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        fields = json.load(file)
    context = fields.get("max_position_embeddings") or fields.get("n_positions") or MOST_TOKENS
    engine = vllm.LLM(
        folder,
        max_model_len=min(context, MOST_TOKENS),
        dtype=dtype,
        enforce_eager=mode == "eager",
        max_num_batched_tokens=TOKENS_A_STEP,
        max_num_seqs=MOST_REQUESTS,
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
    )

    def serve(prompts: list[list[int]], new: int) -> list[list[int]]:
        params = vllm.SamplingParams(
            temperature=0, max_tokens=new, ignore_eos=True, detokenize=False
        )
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = engine.generate(asked, params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    return f"vLLM {vllm.__version__} ({mode})", serve


def openvino(folder: str, dtype: str, mode: str) -> tuple[str, Serve]:
    """openvino-genai's continuous batching, over pages. optimum-intel converts the model."""
    import numpy
    import openvino
    import openvino_genai
    from optimum.exporters.openvino import main_export

    converted = os.path.join(os.environ[SCRATCH], "openvino")
    main_export(folder, converted, task="text-generation-with-past", convert_tokenizer=False)
    limits = openvino_genai.SchedulerConfig()
    limits.max_num_batched_tokens, limits.max_num_seqs = TOKENS_A_STEP, MOST_REQUESTS
    limits.cache_size, limits.enable_prefix_caching = 1, False  # GiB
    precision = {"float32": "f32", "bfloat16": "bf16"}[dtype]
    settings = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": precision,
                "KV_CACHE_PRECISION": precision}  # fmt: skip  # of the cache: else 8 bits
    pipe = openvino_genai.ContinuousBatchingPipeline(converted, limits, "CPU", settings)

    def serve(prompts: list[list[int]], new: int) -> list[list[int]]:
        params = openvino_genai.GenerationConfig()
        params.max_new_tokens, params.ignore_eos, params.do_sample = new, True, False
        asked = [openvino.Tensor(numpy.array([prompt], dtype=numpy.int64)) for prompt in prompts]
        outputs = pipe.generate(asked, [params] * len(asked))
        return [list(output.m_generation_ids[0]) for output in outputs]

    return f"openvino-genai {openvino_genai.__version__.split('-')[0]}", serve


KINDS = {"vllm": vllm, "openvino": openvino}


def main(kind: str, folder: str, dtype: str, mode: str) -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # engines print: none of it may mix with the answers
    os.environ.update(DEFAULTS | dict(os.environ) | MEASURED)

    def say(content: dict[str, Any]) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    try:
        name, serve = KINDS[kind](folder, dtype, mode)
        say({"name": name})
        for line in sys.stdin:
            job = json.loads(line)
            start = time.process_time()
            ids = serve(job["prompts"], job["new"])
            say({"ids": ids, "cpu": time.process_time() - start})
    except Exception as err:
        say({"error": f"{type(err).__name__}: {err}"})
        raise


if __name__ == "__main__":
    main(*sys.argv[1:])
