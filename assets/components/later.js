// Asks for what takes a moment once the page has been painted, and again while no answer has come: a request that
// reaches the server while another part of the page is being answered can be lost.

const EVERY_MS = 3000
const MOST = 20
const waiting = new WeakMap()

export default function (component) {
  const { data, parentElement, setStateValue } = component
  const due = data ? data.due : null
  const before = waiting.get(parentElement)
  if (before && before.due === due) return
  if (before) clearTimeout(before.timer)
  waiting.delete(parentElement)
  if (!due) return
  const now = { due, asked: 0, timer: 0 }
  const ask = () => {
    if (!parentElement.isConnected || now.asked >= MOST) return
    now.asked += 1
    setStateValue("asked", `${due} ${now.asked}`)
    now.timer = setTimeout(ask, EVERY_MS)
  }
  now.timer = setTimeout(ask, 50)
  waiting.set(parentElement, now)
}
