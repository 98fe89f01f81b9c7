"""The tool `file_editor`: view, create, str_replace, insert and undo_edit, on the files of a sandbox."""

from osmosis_grpc.tools.file_editor.editor_tool import file_editor_tool

__all__ = ["file_editor_tool"]
