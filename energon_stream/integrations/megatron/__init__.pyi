from .alias import install_alias as install_alias, uninstall_alias as uninstall_alias
from .checkpoint_folder import (
    dataloader_state_path as dataloader_state_path,
    restore_dataloader_state as restore_dataloader_state,
    save_dataloader_state as save_dataloader_state,
)
from .datamodule import (
    EnergonDataloader as EnergonDataloader,
    EnergonMultiModalDataModule as EnergonMultiModalDataModule,
    cyclic_iter as cyclic_iter,
)
