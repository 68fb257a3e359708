/** The pictures of this extension, in the colours of Lab's theme. */
import { LabIcon } from '@jupyterlab/ui-components';

/** Three blocks of one kind, one above the other: what is compiled once and shared. */
export const blocksIcon = new LabIcon({
  name: 'nbcompile:blocks',
  svgstr:
    '<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">' +
    '<g class="jp-icon3" fill="#616161"><rect x="3" y="3" width="10" height="4.6" rx="1"/>' +
    '<rect x="3" y="9.7" width="10" height="4.6" rx="1"/><rect x="3" y="16.4" width="10" height="4.6" rx="1"/>' +
    '<path d="M19.5 3 15 13h3l-1.5 8L22 10h-3.4z"/></g></svg>'
});
