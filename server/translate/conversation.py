"""What a response answers: the items of the response that it continues, those that it refers to, and its own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, cast

from pydantic import TypeAdapter

from engine.errors import InvalidRequestError
from server.limits import MAX_MESSAGES
from server.observability.record import RequestRecord
from server.protocol.chat import ChatCompletionRequest
from server.protocol.response_items import AnyItem, Item, ItemReference, MessageItem, ReasoningItem, RefusalPart, TextPart
from server.protocol.responses import ResponseInput
from server.response_store import ResponseStore, StoredResponse
from server.translate.parameters import Rename, chat_request, rename_with
from server.translate.responses import INNER_NAMES, NAMES, chat_fields, messages_of

_ITEMS = TypeAdapter(list[AnyItem])
# Ids of items say which response they were stored with.
_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{32})[0-9a-f]*i?", re.ASCII)
_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
_MAX_REFERRED = 32  # responses whose items one request may refer to


@dataclass(frozen=True)
class Items:
    """What a request says and refers to."""

    earlier: list[dict[str, Any]]  # of the response that it continues, as they are stored
    new: list[Item]


@dataclass(frozen=True)
class Conversation:
    """A request's items as they are stored, and the chat completion that answers them."""

    items: list[dict[str, Any]]
    chat: ChatCompletionRequest
    rename: Rename  # from names in the chat completion to the request's own


async def items_for(body: ResponseInput, store: ResponseStore, owner: str, record: RequestRecord) -> Items:
    """All that a request says and refers to. Raises InvalidRequestError for what is not stored, or no longer."""
    lookup = _Lookup(store, owner)
    earlier: list[dict[str, Any]] = []
    if body.previous_response_id is not None:
        earlier = await lookup.everything(body.previous_response_id)
    given = [MessageItem(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    given = given if body.input else []
    new = [
        await lookup.item(item, earlier, f"input.{index}") if isinstance(item, ItemReference) else item for index, item in enumerate(given)
    ]
    if len(earlier) + len(new) > MAX_MESSAGES:
        message = f"the conversation has {len(earlier) + len(new)} items, but no more than {MAX_MESSAGES} are read"
        raise InvalidRequestError(message, param="input")
    record.body_size += lookup.num_bytes
    return Items(earlier, new)


def translated(body: ResponseInput, items: Items, response_hex: str) -> Conversation:
    """A request as a chat completion. Raises ApiError 400 for what chat does not take."""
    found = messages_of(body, _validated(items.earlier), items.new)
    rename = rename_with(NAMES, INNER_NAMES, found.origins)
    chat = chat_request(chat_fields(body, found.messages), rename)
    stored = [_stored_form(item, response_hex, index) for index, item in enumerate(items.new, len(items.earlier))]
    return Conversation([*items.earlier, *stored], chat, rename)


class _Lookup:
    """Finds what one request refers to."""

    def __init__(self, store: ResponseStore, owner: str) -> None:
        self._store = store
        self._owner = owner
        self._found: dict[str, StoredResponse | None] = {}

    @property
    def num_bytes(self) -> int:
        return sum(found.num_bytes for found in self._found.values() if found is not None)

    async def everything(self, response_id: str) -> list[dict[str, Any]]:
        """The items that a response answered, and its own."""
        found = await self._response(response_id)
        if found is None:
            message = f"previous response with id {response_id[:100]!r} not found: never stored, deleted, or gone for newer ones"
            raise InvalidRequestError(message, param="previous_response_id", code="previous_response_not_found")
        if found.response["status"] in ("queued", "in_progress"):
            message = f"the response {response_id} is still being made: continue it once it has ended"
            raise InvalidRequestError(message, param="previous_response_id", code="previous_response_in_progress")
        return _all_items(found)

    async def item(self, reference: ItemReference, earlier: list[dict[str, Any]], where: str) -> Item:
        """The item that is meant."""
        items = earlier
        if not any(item["id"] == reference.id for item in earlier) and (made_for := _ITEM_ID.fullmatch(reference.id)):
            found = await self._response(f"resp_{made_for[1]}")
            items = [] if found is None else _all_items(found)
        for item in items:
            if item["id"] == reference.id:
                return _validated([item])[0]
        message = f"{where} refers to {reference.id[:100]!r}, which is no item of a stored response"
        raise InvalidRequestError(message, param=where, code="item_not_found")

    async def _response(self, response_id: str) -> StoredResponse | None:
        if response_id not in self._found:
            if len(self._found) >= _MAX_REFERRED:
                raise InvalidRequestError(f"input refers to items of more than {_MAX_REFERRED} responses", param="input")
            self._found[response_id] = await self._store.load(self._owner, response_id)
        return self._found[response_id]


def _all_items(stored: StoredResponse) -> list[dict[str, Any]]:
    return [*stored.items, *stored.response["output"]]


def _validated(items: list[dict[str, Any]]) -> list[Item]:
    return cast("list[Item]", _ITEMS.validate_python(items))  # references are not stored


def _stored_form(item: Item, response_hex: str, index: int) -> dict[str, Any]:
    """An item as it is listed later: with an id and a status, and text in parts."""
    stored = item.model_dump(by_alias=True, exclude_none=True)
    stored["id"] = item.id or f"{_PREFIXES[item.type]}_{response_hex}{index:04d}i"
    if not isinstance(item, ReasoningItem):
        stored["status"] = item.status or "completed"
    if isinstance(item, MessageItem):
        kind: Literal["input_text", "output_text"] = "output_text" if item.role == "assistant" else "input_text"
        parts = [TextPart(type=kind, text=item.content)] if isinstance(item.content, str) else item.content
        stored["content"] = [_stored_part(part, kind) for part in parts]
    return stored


def _stored_part(part: TextPart | RefusalPart, kind: str) -> dict[str, Any]:
    if isinstance(part, RefusalPart):
        return {"type": "refusal", "refusal": part.refusal}
    if kind == "input_text":
        return {"type": kind, "text": part.text}
    return {"type": kind, "text": part.text, "annotations": [], "logprobs": part.logprobs or []}
