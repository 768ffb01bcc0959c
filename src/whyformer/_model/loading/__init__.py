"""Loading: a Model from a folder, a name, a module, or an object that holds one. The door of this room."""

from whyformer._model.loading.opening import DEMO_MODELS, READER_FILE, check_device, open
