"""The gRPC service `modal.client.ModalClient`: every RPC of the installed modal_proto, bound to a servicer method or refused.

A servicer is any object whose methods are named like RPCs:

    def AppCreate(self, request, caller, unit) -> response            changes the world; no await
    async def FunctionGetOutputs(self, request, caller, unit)         may wait first, then changes without an await
    async def AppGetLogs(self, request, caller) -> AsyncIterator      a stream

What a method puts into `unit` is committed with the kept answer before the answer is sent (design rule 6).
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import logging
import os
from collections.abc import Callable, Iterable
from typing import Any

import grpclib.const
from google.protobuf import message_factory
from grpclib.const import Cardinality, Status
from grpclib.exceptions import GRPCError, StreamTerminatedError
from modal_proto import api_pb2

from phalanx.api.features import feature_of
from phalanx.api.http2_request import Request
from phalanx.model.caller import Caller
from phalanx.model.refusal import Refusal, RefusalKind
from phalanx.server.bugs import digest
from phalanx.server.server import Server
from phalanx.server.unit import Unit

LOG = logging.getLogger("phalanx.api")
SERVICE = api_pb2.DESCRIPTOR.services_by_name["ModalClient"]

STATUS = {
    RefusalKind.NOT_FOUND: Status.NOT_FOUND,
    RefusalKind.ALREADY_EXISTS: Status.ALREADY_EXISTS,
    RefusalKind.INVALID: Status.INVALID_ARGUMENT,
    RefusalKind.CONFLICT: Status.FAILED_PRECONDITION,
    RefusalKind.EXHAUSTED: Status.RESOURCE_EXHAUSTED,
    RefusalKind.UNAUTHENTICATED: Status.UNAUTHENTICATED,
    RefusalKind.DENIED: Status.PERMISSION_DENIED,
    RefusalKind.UNIMPLEMENTED: Status.UNIMPLEMENTED,
}

LONGEST_KEY = 200       # of idempotency, in characters; clients send 36

# What a container may ask of the API through its shim (design, Networks): its own life, and what client code inside it does.
# Everything else a client may ask is refused only where a method says so by the caller; identity and fleet doors are not its.
NOT_FOR_TASKS = frozenset({"TokenFlowCreate", "TokenFlowWait", "EnvironmentDelete", "EnvironmentUpdate", "AppRollback", "AppRollover"})


class Transport:
    """Binds servicers to the wire. `mapping()` is what grpclib serves."""

    def __init__(self, server: Server, servicers: Iterable[Any]) -> None:
        self._server = server
        self._servicers = list(servicers)
        self._in_flight: dict[tuple[str, str, str], asyncio.Future[Any]] = {}

    def implementation(self, rpc: str) -> Callable[..., Any] | None:
        """The servicer method of an RPC, or None."""
        for servicer in self._servicers:
            method = getattr(servicer, rpc, None)
            if method is not None:
                return method  # type: ignore[no-any-return]
        return None

    def mapping(self) -> dict[str, grpclib.const.Handler]:
        handlers = {}
        for rpc in SERVICE.methods:
            request_class = message_factory.GetMessageClass(rpc.input_type)
            response_class = message_factory.GetMessageClass(rpc.output_type)
            method = self.implementation(rpc.name)
            if method is None:
                serve = self._refuse(rpc.name)
            elif rpc.server_streaming:
                serve = self._stream(rpc.name, method)
            else:
                serve = self._unary(rpc.name, method)
            kind = Cardinality.UNARY_STREAM if rpc.server_streaming else Cardinality.UNARY_UNARY
            handlers[f"/modal.client.ModalClient/{rpc.name}"] = grpclib.const.Handler(serve, kind, request_class, response_class)
        return handlers

    def _unary(self, rpc: str, method: Callable[..., Any]) -> Any:
        async def serve(stream: Request) -> None:
            with errors_for_the_user(rpc):
                request = await stream.recv_message()
                caller = self._caller(stream, rpc)
                await stream.send_message(await self._answer(rpc, method, request, caller))

        return serve

    def _stream(self, rpc: str, method: Callable[..., Any]) -> Any:
        async def serve(stream: Request) -> None:
            with errors_for_the_user(rpc):
                request = await stream.recv_message()
                async for answer in method(request, self._caller(stream, rpc)):
                    await self._server.database.caught_up()
                    await stream.send_message(answer)

        return serve

    def _refuse(self, rpc: str) -> Any:
        async def serve(stream: Request) -> None:
            await stream.recv_message()
            raise GRPCError(Status.UNIMPLEMENTED, f"{feature_of(rpc)} not supported by this Phalanx server ({rpc}).")

        return serve

    async def _answer(self, rpc: str, method: Callable[..., Any], request: Any, caller: Caller) -> Any:
        if not caller.idempotency_key:
            return await self._execute(rpc, method, request, caller)
        # A retry while the first try still runs waits for that one: both get its answer, and it has its effect once.
        key = (caller.name, rpc, caller.idempotency_key)
        while key in self._in_flight:
            first = self._in_flight[key]
            await asyncio.wait((first,))
            if not first.cancelled():       # otherwise its client went away, and this one is the first now
                return first.result()
        kept = self._server.kept_answer(caller, rpc)
        if kept is not None:
            await self._server.database.caught_up()     # the first try may have been given up while its commit is under way
            response_class = message_factory.GetMessageClass(SERVICE.methods_by_name[rpc].output_type)
            return response_class.FromString(kept)
        answered = self._in_flight[key] = asyncio.get_running_loop().create_future()
        try:
            answer = await self._execute(rpc, method, request, caller)
            answered.set_result(answer)
            return answer
        except Exception as error:
            answered.set_exception(error)
            answered.exception()        # there may be no second try to take it
            raise
        finally:
            answered.cancel()           # the client went away, where it is not done yet
            del self._in_flight[key]

    async def _execute(self, rpc: str, method: Callable[..., Any], request: Any, caller: Caller) -> Any:
        self._refuse_known_bug(rpc, request, caller)
        unit = self._server.unit()
        try:
            answer = method(request, caller, unit)
            if inspect.iscoroutine(answer):
                answer = await answer
        except Exception as error:
            if unit.has_changes:
                self._end(rpc, request, caller, unit, error)
            raise
        if unit.is_empty:
            await self._server.database.caught_up()   # never tell what a crash could take back: another's change may be on its way to disk
            return answer
        if caller.idempotency_key:
            self._server.keep_answer(unit, caller, rpc, answer.SerializeToString())
        await self._server.commit_soon(unit)     # ends the process if it fails: a retry would get what is not on disk
        return answer

    def _end(self, rpc: str, request: Any, caller: Caller, unit: Unit, error: Exception) -> None:
        """Records are half-changed: this process ends, and the next one refuses the same request (server/bugs.py)."""
        met = f"{type(error).__name__}: {error}"
        self._server.bugs.note(digest(rpc, caller.name, request.SerializeToString()), met, self._server.now_ms())
        self._server.end_if_changed(unit, rpc)

    def _refuse_known_bug(self, rpc: str, request: Any, caller: Caller) -> None:
        if self._server.bugs.any and (met := self._server.bugs.met_before(digest(rpc, caller.name, request.SerializeToString()))):
            sentence = f"this very request ended the Phalanx server by a bug in {rpc} ({met}); it is not tried again. Its log has more"
            raise GRPCError(Status.INTERNAL, sentence)

    def _caller(self, stream: Request, rpc: str) -> Caller:
        said = stream.metadata.get
        client, host = said("x-modal-client-version", ""), said(":authority", "")
        python = ".".join(said("x-modal-python-version", "").split(".", 2)[:2])
        key = said("x-idempotency-key", "")
        if len(key) > LONGEST_KEY:      # it is part of a row's key, and PostgreSQL's index takes no long ones
            key = hashlib.sha256(key.encode()).hexdigest()
        if stream.task is not None:
            if rpc in NOT_FOR_TASKS:
                raise Refusal(RefusalKind.DENIED, f"{rpc} is not for containers: ask with your own token, outside of the function")
            task_id, assignment, rank = stream.task
            return Caller(task_id, task_id, assignment, rank, client, python, key, host, unix_socket=True)
        token_id, token_secret = said("x-modal-token-id", ""), said("x-modal-token-secret", "")
        if rpc not in _WITHOUT_TOKEN and not self._server.is_token(token_id, token_secret):
            raise Refusal(RefusalKind.UNAUTHENTICATED, token_sentence(token_id))
        return Caller(token_id or "anonymous", client_version=client, python_version=python, idempotency_key=key, host=host)


_WITHOUT_TOKEN = frozenset({"TokenFlowCreate", "TokenFlowWait", "ClientHello"})


def token_sentence(token_id: str) -> str:
    if not token_id:
        return (
            "this Phalanx server wants a token: run `phalanx login` on its machine, "
            "or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET as `phalanx up` printed them"
        )
    return (
        f"token '{token_id}' is not of this Phalanx server: run `phalanx login` on its machine, "
        "or check MODAL_SERVER_URL and MODAL_TOKEN_ID"
    )


class errors_for_the_user:
    """Refusals become statuses with their sentence; anything else is our fault: logged and answered INTERNAL.

    One that left records half-changed has ended the process before it comes here (server/bugs.py). With PHALANX_CRASH_ON_BUG
    set every one does.
    """

    def __init__(self, rpc: str) -> None:
        self._rpc = rpc

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Refusal):
            raise GRPCError(STATUS[error.kind], error.sentence) from None
        if error is None or isinstance(error, GRPCError | StreamTerminatedError | asyncio.CancelledError | ConnectionError):
            return
        LOG.error("%s failed", self._rpc, exc_info=error)
        if os.environ.get("PHALANX_CRASH_ON_BUG"):
            os._exit(70)
        sentence = f"the Phalanx server failed in {self._rpc}: {type(error).__name__}: {error}. Its log has the details."
        raise GRPCError(Status.INTERNAL, sentence) from None
