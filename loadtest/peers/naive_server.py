"""The naive deployment that continuous batching replaced: FastAPI around transformers, one `generate` for each request, one at a time.

    python -m loadtest.peers.naive_server DIRECTORY PORT

Under a lock, so that the threads of several `generate` do not fight over the cores.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from transformers import AutoModelForCausalLM, AutoTokenizer

app = FastAPI()
lock = threading.Lock()


@app.get("/v1/models")
def models() -> dict[str, Any]:
    return {"data": [{"id": "naive"}]}


@app.post("/v1/chat/completions")
def chat(body: dict[str, Any]) -> dict[str, Any]:
    inputs = tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True, return_tensors="pt", return_dict=True)
    new_tokens = body.get("max_completion_tokens") or body["max_tokens"]
    with lock, torch.inference_mode():
        output = model.generate(**inputs, do_sample=False, max_new_tokens=new_tokens, min_new_tokens=new_tokens)
    prompt_tokens = inputs["input_ids"].shape[1]
    text = tokenizer.decode(output[0, prompt_tokens:], skip_special_tokens=True)
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": new_tokens, "total_tokens": prompt_tokens + new_tokens}
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "length"}
    return {"id": "chatcmpl-0", "object": "chat.completion", "created": 0, "model": "naive", "choices": [choice], "usage": usage}


if __name__ == "__main__":
    directory, port = sys.argv[1:]
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")
