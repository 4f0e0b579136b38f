"""llama.cpp, in process, through the low-level interface of llama-cpp-python: all sequences decode together in one batch.

Runs in an environment of its own, so it imports nothing of Octavo.
"""

import json
import sys
import time

import llama_cpp
import numpy as np

BATCH_TOKENS = 512


@llama_cpp.llama_log_callback
def say_nothing(level: int, text: bytes, data: object) -> None:
    """llama.cpp's own log is long."""


class Engine:
    """One context with room for `max_num_seqs` sequences."""

    def __init__(self, path: str, max_num_seqs: int, num_threads: int) -> None:
        llama_cpp.llama_log_set(say_nothing, None)
        llama_cpp.llama_backend_init()
        model_params = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), model_params)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = max(max_num_seqs * 160, 1024)
        params.n_seq_max = max_num_seqs
        params.n_batch = params.n_ubatch = BATCH_TOKENS
        params.n_threads = params.n_threads_batch = num_threads
        params.kv_unified = True
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.batch = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, 1)

    def generate(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        outputs: list[list[int]] = [[] for _ in prompts]
        rows = [(t, p, s, p == len(prompt) - 1) for s, prompt in enumerate(prompts) for p, t in enumerate(prompt)]
        for start in range(0, len(rows), BATCH_TOKENS):
            self._decode(rows[start : start + BATCH_TOKENS], outputs)
        for step in range(new_tokens - 1):
            self._decode([(outputs[s][-1], len(prompt) + step, s, True) for s, prompt in enumerate(prompts)], outputs)
        return outputs

    def _decode(self, rows: list[tuple[int, int, int, bool]], outputs: list[list[int]]) -> None:
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wants_logits) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wants_logits
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
        status = llama_cpp.llama_decode(self.context, batch)
        if status:
            raise SystemExit(f"llama_decode returned {status}")
        for i, (_, _, sequence, wants_logits) in enumerate(rows):
            if wants_logits:
                logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.context, i), (self.vocab_size,))
                outputs[sequence].append(int(logits.argmax()))


def main() -> None:
    path, max_num_seqs, num_threads = sys.argv[1:]
    engine = Engine(path, int(max_num_seqs), int(num_threads))
    for line in sys.stdin:
        job = json.loads(line)
        started = time.perf_counter()
        engine.generate(job["prompts"], job["new_tokens"])
        print(time.perf_counter() - started, flush=True)


if __name__ == "__main__":
    main()
