"""Tools of OpenAI's Responses API. A model sees those of a namespace under names that begin with it."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from gateway.api.messages.tools import MAX_NAME, MAX_TOOLS, LenientPart, functions, other_tool
from gateway.errors import BadRequest

Json = dict[str, Any]


class FunctionTool(LenientPart):
    """A function that the model may call."""

    type: Literal["function"]
    name: str = Field(min_length=1, max_length=MAX_NAME)
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None

    def function(self, name: str) -> Json:
        """As the chat API has it, under this name."""
        function = self.model_dump(exclude={"type"}, exclude_none=True) | {"name": name}
        return {"type": "function", "function": function}


class InputFormat(LenientPart):
    """What the input of a custom tool is like: any text, or one that follows a grammar."""

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = Field(None, description="Of type `grammar`.")
    definition: str | None = Field(None, min_length=1, description="Of type `grammar`.")

    @model_validator(mode="after")
    def _a_grammar_has_both(self) -> "InputFormat":
        if self.type == "grammar" and None in (self.syntax, self.definition):
            raise PydanticCustomError("missing", "A grammar has a 'syntax' and a 'definition'")
        return self


class CustomTool(LenientPart):
    """A function whose only argument is a text, its `input`."""

    type: Literal["custom"]
    name: str = Field(min_length=1, max_length=MAX_NAME)
    description: str | None = None
    format: InputFormat | None = None

    def function(self, name: str) -> Json:
        """As the chat API has it, under this name."""
        custom: Json = {"name": name, "description": self.description}
        if self.format is not None and self.format.type == "grammar":
            grammar = {"syntax": self.format.syntax, "definition": self.format.definition}
            custom["format"] = {"type": "grammar", "grammar": grammar}
        return {"type": "custom", "custom": custom}


_Single = Annotated[FunctionTool | CustomTool, Field(discriminator="type")]
_NoSingle = Annotated[Json, WithJsonSchema(other_tool("function", "custom"))]


def _within(value: object, info: ValidationInfo) -> object:
    return functions(value, info, ("function", "custom", None), "tools.tools")


class NamespaceTool(LenientPart):
    """Tools that belong together, such as those of one MCP server."""

    type: Literal["namespace"]
    name: str = Field(min_length=1, max_length=MAX_NAME)
    description: str | None = None
    tools: Annotated[
        list[_Single],
        Field(max_length=MAX_TOOLS),
        BeforeValidator(_within, json_schema_input_type=list[_Single | _NoSingle]),
    ]


def _tools(value: object, info: ValidationInfo) -> object:
    return functions(value, info, ("function", "custom", "namespace", None))


_Tool = Annotated[FunctionTool | CustomTool | NamespaceTool, Field(discriminator="type")]
_NoTool = Annotated[Json, WithJsonSchema(other_tool("function", "custom", "namespace"))]
Tools = Annotated[
    list[_Tool],
    Field(max_length=MAX_TOOLS),
    BeforeValidator(
        _tools, json_schema_input_type=Annotated[list[_Tool | _NoTool], Field(max_length=MAX_TOOLS)]
    ),
]


def qualified(name: str, namespace: object = None) -> str:
    """The name under which a model sees a tool."""
    return f"{namespace.removesuffix('__')}__{name}" if isinstance(namespace, str) and namespace else name


class Offered:
    """The tools of a request, by the names under which the model sees them."""

    def __init__(self, tools: Iterable[FunctionTool | CustomTool | NamespaceTool]) -> None:
        """Of a tool that comes more than once the last one counts. Raises `BadRequest` if names collide."""
        self._places: dict[str, tuple[str, str]] = {}
        """Namespace and name of each tool."""
        self._tools: dict[str, FunctionTool | CustomTool] = {}
        for tool in tools:
            if isinstance(tool, NamespaceTool):
                for each in tool.tools:
                    self._add(each, tool.name)
            else:
                self._add(tool, "")

    def _add(self, tool: FunctionTool | CustomTool, namespace: str) -> None:
        name, place = qualified(tool.name, namespace), (namespace, tool.name)
        if len(name) > MAX_NAME:
            message = f"'tools': a name with its namespace has at most {MAX_NAME} characters."
            raise BadRequest(message, param="tools", code="invalid_value")
        if self._places.setdefault(name, place) != place:
            message = f"'tools': the model would see two tools of the name '{name}'."
            raise BadRequest(message, param="tools", code="invalid_value")
        self._tools[name] = tool

    def functions(self) -> list[Json]:
        """As the chat API has them."""
        return [tool.function(name) for name, tool in self._tools.items()]

    def called(self, name: str) -> Mapping[str, str]:
        """The fields of a call that name the tool."""
        namespace, own = self._places.get(name, ("", name))
        return {"namespace": namespace, "name": own} if namespace else {"name": own}

    def choice(self, choice: Any) -> object:
        """A `tool_choice` as the chat API has it, which checks it."""
        match choice:
            case {"type": "function" | "custom"}:
                return {"type": "function", "function": {"name": self._meant(choice)}}
            case {"type": "allowed_tools", "tools": list(tools)} if len(tools) <= MAX_TOOLS:
                meant = [each for tool in tools for each in self._allowed(tool)]
                return {"type": "allowed_tools", "allowed_tools": choice | {"tools": meant}}
            case {"type": "allowed_tools"}:
                return {"type": "allowed_tools", "allowed_tools": choice}
        return choice

    def _allowed(self, tool: Any) -> list[Any]:
        """What a tool of `allowed_tools` names: a whole namespace, or one tool."""
        match tool:
            case {"type": "namespace", "name": name}:
                return [{"name": each} for each, (namespace, _) in self._places.items() if namespace == name]
            case {"name": str()}:
                return [{"name": self._meant(tool)}]
        return [tool]

    def _meant(self, named: Json) -> object:
        """The name under which the model sees a tool. One that no other has needs no namespace."""
        name, namespace = named.get("name"), named.get("namespace")
        if not isinstance(name, str):
            return name
        found = [each for each, (_, own) in self._places.items() if own == name]
        alone = len(found) == 1 and not namespace and name not in self._tools
        return found[0] if alone else qualified(name, namespace)
