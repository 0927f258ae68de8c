"""User code that fails where it is imported, on the container only."""

import modal

app = modal.App("broken-import")

if not modal.is_local():
    raise RuntimeError("this module does not import here")


@app.function(gpu="H100:8")
@modal.clustered(size=2)
def never():
    return "never"


@app.local_entrypoint()
def main():
    never.remote()
