/**
 * The way to one kernel: opens the comm, asks, and keeps what the kernel tells of itself.
 *
 * The state comes unasked, as it changes. Asking for it again and again would make the kernel say that it is idle after
 * each answer, and Lab would show that while a cell still runs.
 */
import type { Kernel, KernelMessage } from '@jupyterlab/services';
import type { JSONObject } from '@lumino/coreutils';
import type { IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';

import { PROTOCOL, TARGET, readAny, readFigure, readStatus, readText, type IStatus } from './protocol';

/**
 * How it stands with the kernel's side: being looked for; there; not loaded; of another version; not to be had, as the
 * kernel is of another language or gone.
 */
export type LinkState = 'connecting' | 'open' | 'absent' | 'other' | 'none';

/** How long to wait for a subshell. Without it the comm works too, but waits for the running cell. */
const SUBSHELL_SECONDS = 5;

interface IPending {
  resolve: (result: unknown) => void;
  reject: (error: Error) => void;
}

export class KernelLink implements IDisposable {
  constructor(readonly kernel: Kernel.IKernelConnection) {
    kernel.statusChanged.connect(this.onStatus, this);
    kernel.connectionStatusChanged.connect(this.onConnection, this);
    kernel.iopubMessage.connect(this.onIOPub, this);
    kernel.disposed.connect(this.dispose, this);
    void this.connect();
  }

  /** Emitted when the state or the status has changed. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get state(): LinkState {
    return this._state;
  }

  /**
   * What the kernel has told last; null if nothing. A page that is loaded again during a cell is told so before the
   * kernel answers any question, so this can be there while the state is `connecting`.
   */
  get status(): IStatus | null {
    return this._status;
  }

  /** The version of the kernel's package, where that is known. */
  get version(): string {
    return this._version;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    this.attempt++;
    Signal.clearData(this);
    this.drop('the connection to the kernel was closed');
    this.comm?.dispose();
    this.comm = null;
  }

  /** Look for the kernel's side again if it was not there: it may have been loaded meanwhile. */
  retry(): void {
    if (this._state === 'absent' || this._state === 'other') {
      void this.connect();
    }
  }

  /** Ask the kernel; an error has the kernel's own sentence. Some answers wait until the running cell has ended. */
  ask(method: string, params: JSONObject = {}): Promise<unknown> {
    const comm = this.comm;
    if (this._state === 'connecting' && method !== 'hello' && method !== 'watch') {
      return Promise.reject(new Error('The kernel does not answer yet; it does once its running cell has ended.'));
    }
    if (comm === null || comm.isDisposed || this.kernel.status === 'dead') {
      return Promise.reject(new Error('nbcompile is not loaded in this kernel: run %load_ext nbcompile'));
    }
    const id = String(++this.lastId);
    return new Promise((resolve, reject) => {
      this.pending.set(id, { resolve, reject });
      comm.send({ id, method, params });
    });
  }

  /** Stop what nbcompile does in the kernel, and nothing else; what was stopped, in words. */
  async cancel(): Promise<string> {
    if (this._status?.work && (this._state !== 'open' || !overSubshell(this.kernel, this.comm))) {
      // The question would wait for the very work that it is to stop. That it is nbcompile's, the kernel has told.
      await this.kernel.interrupt();
      return 'The kernel was interrupted.';
    }
    return readText(await this.ask('cancel'), 'message');
  }

  private async connect(): Promise<void> {
    const attempt = ++this.attempt;
    const current = (): boolean => attempt === this.attempt && !this._isDisposed && !this.kernel.isDisposed;
    this.drop('the kernel was connected anew');
    this.comm?.dispose();
    this.comm = null;
    this.become('connecting');
    try {
      const info = await this.kernel.info;
      if (!current()) {
        return;
      }
      if (info.language_info.name !== 'python' || !this.kernel.handleComms) {
        this.become('none');
        return;
      }
      const comm = this.kernel.createComm(TARGET);
      this.comm = comm;
      let closed = false;
      comm.onClose = () => {
        closed = true;
        this.onClose(comm);
      };
      comm.onMsg = message => this.onMessage(comm, message);
      await subshellOf(this.kernel, comm);
      if (!current()) {
        comm.dispose();
        return;
      }
      await comm.open().done;
      if (!current() || closed) {
        return; // the kernel has closed it: nothing is loaded there that it knows the target of
      }
      const hello = await this.ask('hello');
      if (!current()) {
        return;
      }
      this._version = readText(hello, 'version');
      if (readFigure(hello, 'protocol') !== PROTOCOL) {
        this.become('other');
        return;
      }
      const told = readStatus(await this.ask('watch'));
      if (current()) {
        this._status = told;
        this.become('open');
      }
    } catch {
      // the kernel restarts or is gone; its status brings about the next attempt
      if (current()) {
        this.become('absent');
      }
    }
  }

  private onMessage(comm: Kernel.IComm, message: KernelMessage.ICommMsgMsg): void {
    if (comm !== this.comm) {
      return;
    }
    const data: unknown = message.content.data;
    if (readText(data, 'event') === 'gone') {
      comm.dispose();
      this.onClose(comm);
      return;
    }
    if (readText(data, 'event') === 'status') {
      this._status = readStatus(readAny(data, 'status'));
      this._changed.emit();
      return;
    }
    const id = readText(data, 'id');
    const pending = this.pending.get(id);
    this.pending.delete(id);
    const error = readText(data, 'error');
    if (error) {
      pending?.reject(new Error(error));
    } else {
      pending?.resolve(readAny(data, 'result'));
    }
  }

  private onClose(comm: Kernel.IComm): void {
    if (comm === this.comm && !this._isDisposed) {
      this.comm = null;
      this.drop('nbcompile was unloaded');
      this.become('absent');
    }
  }

  private onStatus(_: Kernel.IKernelConnection, status: KernelMessage.Status): void {
    if (status === 'restarting' || status === 'autorestarting') {
      this.restarting = true;
      this.lose('connecting');
    } else if (status === 'dead' || status === 'terminating') {
      this.lose('none');
    } else if (this.restarting && (status === 'idle' || status === 'busy')) {
      this.restarting = false;
      void this.connect();
    }
  }

  private onConnection(_: Kernel.IKernelConnection, status: Kernel.ConnectionStatus): void {
    if (status === 'connected' && this._state === 'open') {
      // what the kernel told meanwhile was lost
      this.ask('watch').then(
        state => {
          this._status = readStatus(state);
          this._changed.emit();
        },
        () => undefined
      );
    }
  }

  private onIOPub(_: Kernel.IKernelConnection, message: KernelMessage.IIOPubMessage): void {
    if (this._state === 'connecting') {
      this.overhear(message);
    }
    if (this._state !== 'absent') {
      return;
    }
    // The kernel logs an error for each comm that it does not know, so not every cell is a reason to try.
    if (message.header.msg_type === 'execute_input') {
      const { code } = message.content as KernelMessage.IExecuteInputMsg['content'];
      this.mentioned = this.mentioned || code.includes(TARGET);
    } else if (this.mentioned && message.header.msg_type === 'status') {
      const { execution_state } = message.content as KernelMessage.IStatusMsg['content'];
      if (
        execution_state === 'idle' &&
        (message.parent_header as KernelMessage.IHeader).msg_type === 'execute_request'
      ) {
        this.mentioned = false;
        void this.connect();
      }
    }
  }

  /**
   * Take what the kernel tells others. While a cell runs it answers no page that is new, not even what it is; but it
   * goes on telling the page that was there before, and messages to one are messages to all.
   */
  private overhear(message: KernelMessage.IIOPubMessage): void {
    if (message.header.msg_type === 'comm_msg') {
      const { data } = message.content as KernelMessage.ICommMsgMsg['content'];
      if (readText(data, 'target') === TARGET && readText(data, 'event') === 'status') {
        this._status = readStatus(readAny(data, 'status'));
        this._changed.emit();
      }
    }
  }

  /** The kernel's side is gone, with all that was asked. */
  private lose(state: LinkState): void {
    this.attempt++;
    this.comm?.dispose();
    this.comm = null;
    this.drop('the kernel was restarted or has died');
    this.become(state);
  }

  private drop(reason: string): void {
    const pending = [...this.pending.values()];
    this.pending.clear();
    pending.forEach(question => question.reject(new Error(reason)));
  }

  private become(state: LinkState): void {
    if (state !== 'open') {
      this._status = null;
    }
    this._state = state;
    this._changed.emit();
  }

  private readonly _changed = new Signal<this, void>(this);
  private _state: LinkState = 'connecting';
  private _status: IStatus | null = null;
  private _version = '';
  private _isDisposed = false;
  private comm: Kernel.IComm | null = null;
  private readonly pending = new Map<string, IPending>();
  private lastId = 0;
  private attempt = 0;
  private restarting = false;
  private mentioned = false;
}

/** Whether questions come to the kernel on a thread of their own, so that a running cell does not hold them up. */
function overSubshell(kernel: Kernel.IKernelConnection, comm: Kernel.IComm | null): boolean {
  return kernel.supportsSubshells && comm?.commsOverSubshells !== 'disabled';
}

/** Wait until the comm has its own subshell: what is sent before goes to the main shell and waits for the cell. */
async function subshellOf(kernel: Kernel.IKernelConnection, comm: Kernel.IComm): Promise<void> {
  if (!overSubshell(kernel, comm)) {
    return;
  }
  // of the class, not of the interface
  const started = (comm as { subshellStarted?: Promise<void> }).subshellStarted;
  const tooLong = new Promise<void>(resolve => window.setTimeout(resolve, SUBSHELL_SECONDS * 1000));
  await Promise.race([started?.catch(() => undefined), tooLong]);
}
