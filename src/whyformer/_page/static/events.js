// Server-sent events, read from the body of a fetch.

/** Cut a stream of text into events: push(text) gives those that are complete, [{ name, data }]. */
export function makeEventReader() {
  let rest = "";
  return (text) => {
    const blocks = (rest + text).replace(/\r\n/g, "\n").split("\n\n");
    rest = blocks.pop();
    return blocks.map(readEvent).filter((event) => event.data !== null);
  };
}

function readEvent(block) {
  let name = "message";
  const data = [];
  for (const line of block.split("\n")) {
    const [, field, value] = /^([^:]*):? ?(.*)$/s.exec(line);
    if (field === "event") name = value;
    if (field === "data") data.push(value);
  }
  return { name, data: data.length ? JSON.parse(data.join("\n")) : null };
}
