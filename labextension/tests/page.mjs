// A page for the unit tests to draw in, and what JupyterLab's packages ask of a browser when they are imported.
import { JSDOM } from 'jsdom';

const page = new JSDOM('<!DOCTYPE html><body></body>', { url: 'http://localhost/', pretendToBeVisual: true });
const window = page.window;
window.matchMedia ??= () => ({ matches: false, addEventListener() {}, removeEventListener() {} });
window.DragEvent ??= class DragEvent extends window.MouseEvent {};
window.ResizeObserver ??= class ResizeObserver {
  observe() {}
  unobserve() {}
  disconnect() {}
};
window.document.queryCommandSupported ??= () => false;
for (const name of Object.getOwnPropertyNames(window)) {
  if (!(name in globalThis)) {
    Object.defineProperty(globalThis, name, { configurable: true, get: () => window[name] });
  }
}
// Node has its own of these, but the page's elements take only the page's.
for (const name of ['Event', 'CustomEvent', 'EventTarget', 'MessageEvent', 'navigator']) {
  Object.defineProperty(globalThis, name, { configurable: true, value: window[name] });
}
Object.defineProperty(globalThis, 'window', { configurable: true, value: globalThis });
