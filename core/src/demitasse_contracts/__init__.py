"""What plugins give, held against the contracts of the hooks, and the files that users name: errors
name the plugin or the file and what is valid. A package beside the kernel."""

from demitasse_contracts.candidates import check_candidate as check_candidate
from demitasse_contracts.contents import looks_like as looks_like
from demitasse_contracts.contents import looks_like_at as looks_like_at
from demitasse_contracts.contents import unread_model as unread_model
from demitasse_contracts.elsewhere import kernels_elsewhere as kernels_elsewhere
from demitasse_contracts.gathering import gathered_layer_types as gathered_layer_types
from demitasse_contracts.gathering import gathered_words as gathered_words
from demitasse_contracts.given import absent as absent
from demitasse_contracts.given import broken_contract as broken_contract
from demitasse_contracts.given import check_given as check_given
from demitasse_contracts.given import check_program as check_program
from demitasse_contracts.given import disagreement as disagreement
from demitasse_contracts.given import no_package as no_package
from demitasse_contracts.given import unfit as unfit
from demitasse_contracts.given import unreadable as unreadable
from demitasse_contracts.image_files import IMAGE_ENDINGS as IMAGE_ENDINGS
from demitasse_contracts.image_files import check_image as check_image
from demitasse_contracts.image_files import image_size as image_size
from demitasse_contracts.image_files import images_by_class as images_by_class
from demitasse_contracts.levels import check_levels as check_levels
from demitasse_contracts.model_files import by_suffix as by_suffix
from demitasse_contracts.model_files import check_file as check_file
from demitasse_contracts.model_files import check_plain as check_plain
from demitasse_contracts.model_files import file_text as file_text
from demitasse_contracts.model_files import nearest_path as nearest_path
from demitasse_contracts.owners import blamed as blamed
from demitasse_contracts.owners import blamed_inside as blamed_inside
from demitasse_contracts.owners import closed as closed
from demitasse_contracts.owners import raised as raised
from demitasse_contracts.owners import whose as whose
from demitasse_contracts.words import check_word as check_word
