"""Cancels a call that another program left; with --terminate, by stopping its containers."""

import sys

import modal

call = modal.FunctionCall.from_id(sys.argv[1])
call.cancel(terminate_containers="--terminate" in sys.argv)
try:
    call.get()
except BaseException as error:
    print(f'\n## cancelled "{type(error).__name__}"', flush=True)
