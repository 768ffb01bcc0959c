// The workbench of models that see an image.

import { read, upload } from "./api.js";
import { make } from "./dom.js";
import { makeImageStage } from "./image_stage.js";
import { makeWorkbench } from "./workbench.js";
import { count } from "./wording.js";

export function makeImageBench(desk, settings) {
  let opened = null; // { bytes, name } of the image on the page
  const bench = makeWorkbench(desk, (handlers) => makeImageStage(desk, { ...handlers, open, openSample }, settings), settings);
  desk.renew = async () => { if (opened?.bytes) await upload(opened.bytes); };

  async function open(file, given = {}) {
    const { body_bytes: most } = desk.limits;
    if (file.size > most)
      return bench.notice.fail({ code: "E_PAGE_BODY", message: `${file.name} is too large: ${formatBytes(file.size)}.`, help: `This page takes images up to ${formatBytes(most)}.` });
    const bytes = await file.arrayBuffer();
    const answer = await bench.notice.during("Reading the image", () => uploadNamed(bytes, file.name), () => open(file, given));
    return answer && showOpened({ bytes, name: file.name || "pasted image" }, answer, given);
  }

  async function openSample(i, given = {}) {
    const sample = desk.model.samples[i];
    const answer = await bench.notice.during("Reading the image", () => read(`image/${encodeURIComponent(sample.image)}`), () => openSample(i, given));
    return answer && showOpened({ bytes: null, name: sample.title, sample: i }, answer, given);
  }

  async function showOpened(source, answer, given) {
    const image = make("img", { src: answer.preview, alt: "" });
    await image.decode();
    opened = { ...source, preview: answer.preview };
    bench.stage.showImage(answer, image);
    desk.setAddress({ sample: source.sample ?? null });
    await bench.open({ image: answer.image }, source.name, given);
  }

  function describe() {
    const found = bench.describe();
    return found && { ...found, name: opened.name, thumbnail: bench.stage.thumbnail, picture: opened.bytes ?? opened.preview };
  }

  return {
    element: bench.element,
    describe,
    /** Show what the address or a case asks for. */
    async restore({ file = null, sample = null, choice = {} }) {
      const method = choice.method ?? null;
      const given = { target: choice.target ?? null, versus: choice.versus ?? null, ...(method ? { method } : {}) };
      if (file) return open(file, given);
      return sample !== null && desk.model.samples?.[sample] ? openSample(sample, given) : undefined;
    },
    close: () => bench.stage.zone.close(),
  };
}

/** Upload a file; the server does not know its name, so an error gets it here. */
async function uploadNamed(bytes, name) {
  try {
    return await upload(bytes);
  } catch (error) {
    error.message = error.message.replace("'this file'", name || "This image");
    throw error;
  }
}

export function formatBytes(bytes) {
  if (bytes < 1000) return count(bytes, "byte");
  return bytes < 1e6 ? `${Math.round(bytes / 1000)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}
