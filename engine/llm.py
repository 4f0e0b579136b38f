"""LLM: the offline, blocking face of the engine, for scripts and batch jobs."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Any

from tqdm import tqdm

from engine.chat.format import ChatFormat
from engine.chat.message import read_message
from engine.chat.plan import AnswerWishes
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.embedding_processor import EmbeddingProcessor
from engine.errors import InvalidRequestError
from engine.executor.device import resolve_device
from engine.executor.in_process import InProcessExecutor
from engine.grammar.compiler import GrammarCompiler
from engine.loader.resolve import resolve_model
from engine.logits_processors import LogitsProcessorRegistry
from engine.model_config import resolve_max_model_len, resolve_pooling
from engine.output_processor import OutputProcessor
from engine.outputs import EmbeddingOutput, RequestOutput
from engine.pooling_params import PoolingParams
from engine.processor import Output, Processor
from engine.request_builder import RequestBuilder
from engine.sampling_params import SamplingParams
from engine.tool_calls.tools import read_tools

Prompt = str | SequenceOf[int]
ConversationMessage = dict[str, Any]


class LLM:
    """Generates for many prompts at once, in this process.

        llm = LLM(model="Qwen/Qwen3-0.6B", max_num_seqs=64)
        for output in llm.generate(prompts, SamplingParams(temperature=0.8, max_tokens=100)):
            print(output.outputs[0].text)

    Takes the fields of EngineConfig as keywords. Raises ConfigError or ModelLoadError when the model cannot be served.
    """

    def __init__(self, model: str | None = None, **settings: Any) -> None:
        config = resolve_device(EngineConfig(model=model, **settings))
        source = resolve_model(config.model, config.revision, config.load_format, config.seed)
        model_config = source.config()
        self.config = config
        self.tokenizer = source.tokenizer()
        template = source.chat_template()
        tokenizer = self.tokenizer
        self._chat_format = None if template is None else ChatFormat(template, tokenizer, config.tool_call_parser, config.reasoning_parser)
        grammars = GrammarCompiler(lambda: tokenizer, model_config.vocab_size, model_config.eos_token_ids)
        processors = LogitsProcessorRegistry(config.logits_processors)
        self._builder = RequestBuilder(
            resolve_max_model_len(config, model_config),
            model_config.vocab_size,
            config.seed,
            self.tokenizer,
            max_num_seqs=config.seq_budget,
            grammars=grammars,
            pooling=resolve_pooling(config, model_config),
            hidden_size=model_config.hidden_size,
            processors=processors,
        )
        self.engine = EngineCore(config, model_config, InProcessExecutor(config, source, grammars))
        self._builder.learn_pool(self.engine.block_manager.num_blocks, config.block_size)

    def generate(
        self, prompts: Prompt | SequenceOf[Prompt], params: SamplingParams | SequenceOf[SamplingParams] | None = None, use_tqdm: bool = True
    ) -> list[RequestOutput]:
        """The whole output for each prompt (a text, or token ids), in the order of the prompts.

        `params` is one for all or one for each; none is SamplingParams(). Raises InvalidRequestError, before anything runs, when one of
        them can never be served.
        """
        batch = _as_batch(prompts)
        all_params = _one_for_each(params, len(batch))
        processors = [
            self._prepare(str(i), prompt, prompt_params) for i, (prompt, prompt_params) in enumerate(zip(batch, all_params, strict=True))
        ]
        outputs = self._run(processors, "generating", use_tqdm)
        for output, prompt in zip(outputs, batch, strict=True):
            output.prompt = prompt if isinstance(prompt, str) else None
            output.outputs.sort(key=lambda completion: completion.index)
        return outputs

    def embed(
        self, prompts: Prompt | SequenceOf[Prompt], params: PoolingParams | None = None, use_tqdm: bool = True
    ) -> list[EmbeddingOutput]:
        """One vector for each prompt, in their order. Raises InvalidRequestError, before anything runs, for what can never be served."""
        batch = _as_batch(prompts)
        processors = []
        for i, prompt in enumerate(batch):
            request = self._builder.build_pooled(str(i), self._token_ids(prompt), params or PoolingParams())
            processors.append(EmbeddingProcessor(request))
        outputs = self._run(processors, "embedding", use_tqdm)
        for output, prompt in zip(outputs, batch, strict=True):
            output.prompt = prompt if isinstance(prompt, str) else None
        return outputs

    def chat(
        self,
        conversations: list[ConversationMessage] | list[list[ConversationMessage]],
        params: SamplingParams | SequenceOf[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        tools: SequenceOf[dict[str, Any]] = (),
        tool_choice: str = "auto",
        chat_template_kwargs: dict[str, Any] | None = None,
        thinking_token_budget: int | None = None,
    ) -> list[RequestOutput]:
        """The same for conversations: each is a list of {"role", "content"}, rendered by the model's chat template.

        `tools` are in OpenAI's form; `tool_choice` is none, auto, required, or the name of one. Each output's `message` holds its content,
        its reasoning and its tool calls. Raises InvalidRequestError for tools that are none, and for what the template cannot render.
        """
        if self._chat_format is None:
            raise InvalidRequestError("the model has no chat template: use generate with a prompt", param="messages")
        batch = [conversations] if conversations and isinstance(conversations[0], dict) else conversations
        use = read_tools(tools, tool_choice)
        wishes = AnswerWishes(template_variables=chat_template_kwargs or {}, thinking_token_budget=thinking_token_budget)
        texts = [self._chat_format.render(one, use, variables=chat_template_kwargs) for one in batch]  # type: ignore[arg-type]
        all_params = _one_for_each(params, len(batch))
        plans = [self._chat_format.plan(text, use, one, wishes) for text, one in zip(texts, all_params, strict=True)]
        prompts = [self.tokenizer.encode(text, add_special_tokens=False) for text in texts]
        outputs = self.generate(prompts, [plan.params for plan in plans], use_tqdm)
        for output, plan in zip(outputs, plans, strict=True):
            for completion in output.outputs:
                completion.message = read_message(plan.new_parser(), completion.text, completion.token_ids)
        return outputs

    def _prepare(self, request_id: str, prompt: Prompt, params: SamplingParams) -> OutputProcessor:
        token_ids = self._token_ids(prompt)
        sequences = self._builder.build(request_id, token_ids, params)
        return OutputProcessor(request_id, token_ids, params, sequences, self.tokenizer)

    def _token_ids(self, prompt: Prompt) -> list[int]:
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)

    def _run(self, processors: SequenceOf[Processor[Output]], doing: str, use_tqdm: bool) -> list[Output]:
        owners: dict[str, Processor[Output]] = {}
        results: dict[str, Output] = {}
        for processor in processors:
            for sequence_id in processor.unfinished_ids:
                owners[sequence_id] = processor
                self.engine.add_request(processor.resumed(sequence_id))
        try:
            with tqdm(total=len(processors), desc=doing, unit="request", disable=not use_tqdm) as bar:
                while self.engine.has_work:
                    self._step(owners, results, bar)
        finally:
            # Only after an exception, an interrupt above all, is anything left to abort.
            self.engine.abort_requests(list(owners))
        return [results[processor.request_id] for processor in processors]

    def _step(self, owners: dict[str, Processor[Output]], results: dict[str, Output], bar: tqdm[Any]) -> None:
        for sequence_output in self.engine.step():
            processor = owners[sequence_output.request_id]
            new, stopped = processor.process(sequence_output)
            if stopped:
                self.engine.abort_requests([sequence_output.request_id])
            if new is not None:
                known = results.get(processor.request_id)
                results[processor.request_id] = new if known is None else processor.merge(known, new)
                if new.finished:
                    bar.update()


def _as_batch(prompts: Prompt | SequenceOf[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if prompts and isinstance(prompts[0], int):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _one_for_each(params: SamplingParams | SequenceOf[SamplingParams] | None, num_prompts: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * num_prompts
    if len(params) != num_prompts:
        raise InvalidRequestError(f"there are {num_prompts} prompts but {len(params)} sampling parameters", param="params")
    return list(params)
